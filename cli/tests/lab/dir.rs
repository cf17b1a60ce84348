//! A directory that goes with its handle.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) struct Dir(PathBuf);

impl Dir {
    /// A new one, whose name begins so.
    #[track_caller]
    pub(crate) fn new(name: &str) -> Self {
        let thread = std::thread::current().name().unwrap_or("main").replace("::", "-");
        let path =
            std::env::temp_dir().join(format!("softroce-{name}-{}-{thread}", std::process::id()));
        fs::create_dir_all(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // Whoever looks at temporary files finds it.
        let _ = fs::remove_dir_all(&self.0);
    }
}
