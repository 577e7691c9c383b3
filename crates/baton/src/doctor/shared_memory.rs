//! What the KV pool is made of, and what lets other processes copy out of it.

use std::fs::read_to_string;

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create, statvfs};

use super::finding::Finding;
use crate::args::ByteSize;

const ABOUT: &str = "shared memory";

pub fn look() -> Vec<Finding> {
    let read = |path: &str| read_to_string(path).unwrap_or_default();
    let mut findings = vec![
        memory_file(),
        overcommit(&read("/proc/sys/vm/overcommit_memory")),
        huge_pages(&read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        copying(&read("/proc/sys/kernel/yama/ptrace_scope")),
    ];
    findings.extend(dev_shm());
    findings
}

/// Of a size that any system has left.
const TRIED_BYTES: u64 = 1 << 20;

fn memory_file() -> Finding {
    let made = memfd_create("baton-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|file| fallocate(&file, FallocateFlags::empty(), 0, TRIED_BYTES));
    match made {
        Ok(()) => {
            Finding::ok(ABOUT, "memfd", "memory files can be made, without a name and without /dev/shm")
        }
        Err(error) => Finding::failed(
            ABOUT,
            "memfd",
            format!("no memory file can be made: {error}"),
            "let the sandbox permit memfd_create and fallocate: every engine keeps its KV in one",
        ),
    }
}

fn overcommit(text: &str) -> Finding {
    match text.trim() {
        "2" => Finding::missing(
            ABOUT,
            "overcommit",
            "the kernel promises no more memory than there is (vm.overcommit_memory = 2)",
            "if an engine cannot allocate: sysctl vm.overcommit_memory=0, or a smaller --kv-memory",
        ),
        mode => Finding::ok(ABOUT, "overcommit", format!("vm.overcommit_memory = {mode}")),
    }
}

/// The one in brackets is chosen: `always within_size advise [never] deny force`.
fn huge_pages(text: &str) -> Finding {
    let chosen = text.split('[').nth(1).and_then(|rest| rest.split(']').next());
    match chosen {
        Some(mode @ ("never" | "deny")) => Finding::missing(
            ABOUT,
            "huge pages",
            format!("memory files get none (shmem_enabled is {mode})"),
            "for fewer page faults: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
        Some(mode) => {
            Finding::ok(ABOUT, "huge pages", format!("memory files get them (shmem_enabled is {mode})"))
        }
        None => Finding::missing(
            ABOUT,
            "huge pages",
            "the kernel has none",
            "nothing: they save page faults only",
        ),
    }
}

/// Whether `process_vm_readv` works between processes that are no family.
fn copying(ptrace_scope: &str) -> Finding {
    match ptrace_scope.trim() {
        "" | "0" => Finding::ok(ABOUT, "cma", "processes of one user may copy from one another"),
        scope => Finding::missing(
            ABOUT,
            "cma",
            format!("processes may not copy from one another (kernel.yama.ptrace_scope = {scope})"),
            "for NIXL within this host: sysctl kernel.yama.ptrace_scope=0; else it uses TCP",
        ),
    }
}

/// Engines do not need it; UCX does for some of its ways within a host.
fn dev_shm() -> Option<Finding> {
    let stat = statvfs("/dev/shm").ok()?;
    let free = ByteSize((stat.f_bavail * stat.f_frsize) >> 20 << 20);
    Some(Finding::ok(ABOUT, "/dev/shm", format!("{free} free; only NIXL within this host uses it")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn the_kernel_s_settings_are_understood() {
        assert_eq!(overcommit("2\n").state, State::Missing);
        assert_eq!(overcommit("0\n").state, State::Ok);
        assert_eq!(huge_pages("always within_size advise [never] deny force\n").state, State::Missing);
        assert_eq!(huge_pages("always within_size [advise] never deny force\n").state, State::Ok);
        assert_eq!(huge_pages("").state, State::Missing);
        assert_eq!(copying("1\n").state, State::Missing);
        assert_eq!((copying("").state, copying("0\n").state), (State::Ok, State::Ok));
    }
}
