//! `softroce devinfo`: devices, their limits and addresses, in the layout of `ibv_devinfo`.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use softroce::devices;
use softroce::prelude::*;
use softroce::verbs::{AtomicCap, DeviceAttr, GidEntry, GidKind, PortState};

use crate::output::{BAD_INPUT, complain, print};

/// Show devices: identity, port and MTU; with -v all limits and the GID table.
///
/// Without a name all devices are shown, as `ibv_devinfo` does and in its layout. A device is opened for
/// that, which takes its UDP port for a moment; one that cannot be opened is a line on the standard error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: 0, or 2 if a device that was named could not be shown.")]
pub(crate) struct Args {
    /// Show limits and addresses too
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object per device instead of text
    #[arg(long)]
    json: bool,
    /// Devices, such as soft:lo, soft:eth0, soft:udp=10.0.0.1, soft:frames=SOCKET,... or soft:raw=eth0,...
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
}

/// A device, in the order and with the names of `ibv_devinfo`.
#[derive(Debug, Serialize)]
struct Info {
    hca_id: String,
    transport: &'static str,
    fw_ver: String,
    node_guid: String,
    sys_image_guid: String,
    vendor_id: u32,
    vendor_part_id: u32,
    hw_ver: u32,
    phys_port_cnt: u8,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    ports: Vec<Port>,
}

/// What -v adds to a device.
#[derive(Debug, Serialize)]
struct Limits {
    max_mr_size: u64,
    page_size_cap: u64,
    max_qp: u32,
    max_qp_wr: u32,
    max_sge: u32,
    max_sge_rd: u32,
    max_inline_data: u32,
    max_cq: u32,
    max_cqe: u32,
    max_mr: u32,
    max_pd: u32,
    max_qp_rd_atom: u32,
    max_qp_init_rd_atom: u32,
    atomic_cap: &'static str,
    max_mw: u32,
    max_srq: u32,
    max_srq_wr: u32,
    max_pkeys: u16,
    local_ca_ack_delay: u8,
    memory_windows_2b: bool,
    on_demand_paging: bool,
    xrc: bool,
    completion_timestamps: bool,
}

#[derive(Debug, Serialize)]
struct Port {
    port: u8,
    state: &'static str,
    max_mtu: usize,
    active_mtu: usize,
    sm_lid: u16,
    port_lid: u16,
    port_lmc: u8,
    link_layer: &'static str,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    more: Option<PortMore>,
    #[serde(skip)]
    codes: [u8; 3],
}

/// What -v adds to a port.
#[derive(Debug, Serialize)]
struct PortMore {
    max_msg_sz: u32,
    pkey_tbl_len: u16,
    gid_tbl_len: u32,
    gids: Vec<GidLine>,
}

#[derive(Debug, Serialize)]
struct GidLine {
    index: u16,
    gid: String,
    kind: &'static str,
    netdev: Option<String>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let named = !args.devices.is_empty();
    let names = if named {
        args.devices.clone()
    } else {
        match devices() {
            Ok(devices) => devices.into_iter().map(|d| d.name).collect(),
            Err(e) => {
                complain(format_args!("devinfo: {e}"));
                return ExitCode::from(BAD_INPUT);
            }
        }
    };
    let mut status = 0;
    let mut shown = Vec::new();
    for name in &names {
        match Context::open(name).and_then(|ctx| Info::of(&ctx, args.verbose)) {
            Ok(info) => shown.push(info),
            Err(e) => {
                complain(format_args!("{name}: {e}"));
                if named {
                    status = BAD_INPUT;
                }
            }
        }
    }
    print(status, |out| {
        for info in &shown {
            if args.json {
                serde_json::to_writer(&mut *out, info)?;
                writeln!(out)?;
            } else {
                info.print(out)?;
            }
        }
        Ok(())
    })
}

impl Info {
    fn of(ctx: &Context, verbose: bool) -> Result<Self> {
        let a = ctx.attr()?;
        let ports =
            (1..=a.ports).map(|port| Port::of(ctx, port, verbose)).collect::<Result<_>>()?;
        let limits = verbose.then(|| Limits::of(&a));
        Ok(Self {
            hca_id: ctx.device().name.clone(),
            transport: "InfiniBand",
            fw_ver: a.fw_ver,
            node_guid: guid(a.node_guid),
            sys_image_guid: guid(a.sys_image_guid),
            vendor_id: a.vendor_id,
            vendor_part_id: a.vendor_part_id,
            hw_ver: a.hw_ver,
            phys_port_cnt: a.ports,
            limits,
            ports,
        })
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "hca_id:\t{}", self.hca_id)?;
        line(out, 1, "transport", format_args!("{} (0)", self.transport))?;
        line(out, 1, "fw_ver", &self.fw_ver)?;
        line(out, 1, "node_guid", &self.node_guid)?;
        line(out, 1, "sys_image_guid", &self.sys_image_guid)?;
        line(out, 1, "vendor_id", format_args!("0x{:04x}", self.vendor_id))?;
        line(out, 1, "vendor_part_id", self.vendor_part_id)?;
        line(out, 1, "hw_ver", format_args!("0x{:X}", self.hw_ver))?;
        line(out, 1, "phys_port_cnt", self.phys_port_cnt)?;
        if let Some(limits) = &self.limits {
            limits.print(out)?;
        }
        for port in &self.ports {
            port.print(out)?;
        }
        writeln!(out)
    }
}

impl Limits {
    fn of(a: &DeviceAttr) -> Self {
        Self {
            max_mr_size: a.max_mr_size,
            page_size_cap: a.page_size_cap,
            max_qp: a.max_qp,
            max_qp_wr: a.max_qp_wr,
            max_sge: a.max_sge,
            max_sge_rd: a.max_sge_rd,
            max_inline_data: a.max_inline,
            max_cq: a.max_cq,
            max_cqe: a.max_cqe,
            max_mr: a.max_mr,
            max_pd: a.max_pd,
            max_qp_rd_atom: a.max_qp_rd_atom,
            max_qp_init_rd_atom: a.max_qp_init_rd_atom,
            atomic_cap: match a.atomic_cap {
                AtomicCap::None => "ATOMIC_NONE",
                AtomicCap::Hca => "ATOMIC_HCA",
                AtomicCap::Global => "ATOMIC_GLOB",
            },
            max_mw: a.max_mw,
            max_srq: a.max_srq,
            max_srq_wr: a.max_srq_wr,
            max_pkeys: a.max_pkeys,
            local_ca_ack_delay: a.local_ca_ack_delay,
            memory_windows_2b: a.memory_windows,
            on_demand_paging: a.odp,
            xrc: a.xrc,
            completion_timestamps: a.timestamps,
        }
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        line(out, 1, "max_mr_size", format_args!("{:#x}", self.max_mr_size))?;
        line(out, 1, "page_size_cap", format_args!("{:#x}", self.page_size_cap))?;
        line(out, 1, "max_qp", self.max_qp)?;
        line(out, 1, "max_qp_wr", self.max_qp_wr)?;
        line(out, 1, "max_sge", self.max_sge)?;
        line(out, 1, "max_sge_rd", self.max_sge_rd)?;
        line(out, 1, "max_inline_data", self.max_inline_data)?;
        line(out, 1, "max_cq", self.max_cq)?;
        line(out, 1, "max_cqe", self.max_cqe)?;
        line(out, 1, "max_mr", self.max_mr)?;
        line(out, 1, "max_pd", self.max_pd)?;
        line(out, 1, "max_qp_rd_atom", self.max_qp_rd_atom)?;
        line(out, 1, "max_qp_init_rd_atom", self.max_qp_init_rd_atom)?;
        line(out, 1, "atomic_cap", self.atomic_cap)?;
        line(out, 1, "max_mw", self.max_mw)?;
        line(out, 1, "max_srq", self.max_srq)?;
        line(out, 1, "max_srq_wr", self.max_srq_wr)?;
        line(out, 1, "max_pkeys", self.max_pkeys)?;
        line(out, 1, "local_ca_ack_delay", self.local_ca_ack_delay)?;
        line(out, 1, "memory_windows_2b", self.memory_windows_2b)?;
        line(out, 1, "on_demand_paging", self.on_demand_paging)?;
        line(out, 1, "xrc", self.xrc)?;
        line(out, 1, "completion_timestamps", self.completion_timestamps)
    }
}

impl Port {
    fn of(ctx: &Context, port: u8, verbose: bool) -> Result<Self> {
        let a = ctx.port(port)?;
        let more = match verbose {
            true => Some(PortMore {
                max_msg_sz: a.max_msg_size,
                pkey_tbl_len: a.pkey_len,
                gid_tbl_len: a.gid_len,
                gids: ctx.gids()?.into_iter().filter(|g| g.port == port).map(GidLine::of).collect(),
            }),
            false => None,
        };
        Ok(Self {
            port,
            state: match a.state {
                PortState::Down => "PORT_DOWN",
                PortState::Init => "PORT_INIT",
                PortState::Armed => "PORT_ARMED",
                PortState::Active => "PORT_ACTIVE",
                _ => "invalid state",
            },
            max_mtu: a.max_mtu.bytes(),
            active_mtu: a.active_mtu.bytes(),
            sm_lid: 0,
            port_lid: a.lid,
            port_lmc: 0,
            link_layer: "Ethernet",
            more,
            codes: [a.state as u8, a.max_mtu as u8, a.active_mtu as u8],
        })
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let [state, max_mtu, active_mtu] = self.codes;
        writeln!(out, "\t\tport:\t{}", self.port)?;
        line(out, 3, "state", format_args!("{} ({state})", self.state))?;
        line(out, 3, "max_mtu", format_args!("{} ({max_mtu})", self.max_mtu))?;
        line(out, 3, "active_mtu", format_args!("{} ({active_mtu})", self.active_mtu))?;
        line(out, 3, "sm_lid", self.sm_lid)?;
        line(out, 3, "port_lid", self.port_lid)?;
        line(out, 3, "port_lmc", format_args!("0x{:02x}", self.port_lmc))?;
        line(out, 3, "link_layer", self.link_layer)?;
        let Some(more) = &self.more else { return Ok(()) };
        line(out, 3, "max_msg_sz", format_args!("{:#x}", more.max_msg_sz))?;
        line(out, 3, "pkey_tbl_len", more.pkey_tbl_len)?;
        line(out, 3, "gid_tbl_len", more.gid_tbl_len)?;
        for g in &more.gids {
            let name = format!("GID[{:3}]", g.index);
            let on = g.netdev.as_ref().map_or(String::new(), |dev| format!(", {dev}"));
            line(out, 3, &name, format_args!("{}, {}{on}", g.gid, g.kind))?;
        }
        Ok(())
    }
}

impl GidLine {
    fn of(g: GidEntry) -> Self {
        Self {
            index: g.index,
            gid: g.gid.to_string(),
            kind: match g.kind {
                GidKind::Ib => "IB",
                GidKind::RoceV1 => "RoCE v1",
                GidKind::RoceV2 => "RoCE v2",
                _ => "unknown",
            },
            netdev: g.netdev,
        }
    }
}

/// `name:` and a value in the columns of `ibv_devinfo`: values of a device stand five tabs in, those of a
/// port six.
fn line(
    out: &mut dyn Write,
    depth: usize,
    name: &str,
    value: impl std::fmt::Display,
) -> io::Result<()> {
    let column = if depth == 1 { 40 } else { 48 };
    let used = 8 * depth + name.len() + 1;
    let tabs = "\t".repeat((column - used.min(column - 1)).div_ceil(8));
    writeln!(out, "{}{name}:{tabs}{value}", "\t".repeat(depth))
}

fn guid(n: u64) -> String {
    format!("{:04x}:{:04x}:{:04x}:{:04x}", n >> 48, n >> 32 & 0xffff, n >> 16 & 0xffff, n & 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_in_one_column() {
        let mut out = Vec::new();
        line(&mut out, 1, "transport", "InfiniBand (0)").unwrap();
        line(&mut out, 1, "sys_image_guid", "x").unwrap();
        line(&mut out, 3, "state", "PORT_ACTIVE (4)").unwrap();
        line(&mut out, 3, "GID[  0]", "::1").unwrap();
        line(&mut out, 1, "completion_timestamps_of_a_device", true).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "\ttransport:\t\t\tInfiniBand (0)\n\tsys_image_guid:\t\t\tx\n\
             \t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tGID[  0]:\t\t::1\n\
             \tcompletion_timestamps_of_a_device:\ttrue\n"
        );
        assert_eq!(guid(0x0253_52ff_fe7f_0002), "0253:52ff:fe7f:0002");
    }
}
