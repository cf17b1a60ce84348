//! Values that options of several commands take.

use softroce::prelude::Mtu;

/// A number of bytes: `4096`, `64K`, `1MiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "k" | "kib" => Some(1 << 10),
        "m" | "mib" => Some(1 << 20),
        "g" | "gib" => Some(1 << 30),
        _ => None,
    };
    let number = number.parse::<u64>().ok();
    let size = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    size.ok_or_else(|| "wanted a number of bytes, such as 4096, 64K or 1M".to_owned())
}

/// Bytes of a message: what no message can have is refused here, what one command cannot do by that.
pub(crate) fn message(text: &str) -> Result<u32, String> {
    u32::try_from(bytes(text)?).map_err(|_| "a message has less than 4 GiB".to_owned())
}

/// A path MTU.
pub(crate) fn mtu(text: &str) -> Result<Mtu, String> {
    let mtu = text.parse().ok().and_then(Mtu::from_bytes);
    mtu.ok_or_else(|| "wanted 256, 512, 1024, 2048 or 4096".to_owned())
}

/// A seed of a simulation.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "wanted a whole number from 0 on, below 2^64".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, size) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("1M", 1 << 20),
            ("1 MiB", 1 << 20),
            ("2g", 2 << 30),
        ] {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in ["", "K", "1T", "-1", "+1", "1.5K", "99999999999999999999", "99999999999G"] {
            assert!(bytes(text).unwrap_err().contains("64K"), "{text}");
        }
        assert_eq!(message("4095M"), Ok(4095 << 20));
        assert!(message("4G").is_err());
    }

    #[test]
    fn path_mtus_and_seeds() {
        assert_eq!(mtu("1024"), Ok(Mtu::B1024));
        assert!(mtu("1500").is_err());
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
        for text in ["x", "-1", "", "1.0"] {
            assert!(seed(text).is_err(), "{text}");
        }
    }
}
