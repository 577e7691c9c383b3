//! What the system knows of a process.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};

/// How much a process holds at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vitals {
    pub descriptors: usize,
    /// Memory of its own, in KiB: not the KV pools that it shares with others.
    pub memory_kib: u64,
}

impl Vitals {
    /// # Errors
    /// If there is no such process.
    pub fn of(pid: u32) -> Result<Self> {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).context("no RssAnon in /proc")?;
        Ok(Self { descriptors, memory_kib: kib.parse()? })
    }
}

/// What has a name in shared memory.
pub fn shared_memory() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
