//! The processor and the memory.

use std::fs::read_to_string;

use baton_model::kernels::simd::Isa;

use super::finding::Finding;
use crate::args::ByteSize;

const ABOUT: &str = "host";

pub fn look() -> Vec<Finding> {
    let kernel = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let meminfo = read_to_string("/proc/meminfo").unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let mut findings = vec![
        Finding::ok(ABOUT, "baton", format!("{version}, {arch}, {os} {}", kernel.trim())),
        cpu(&cpuinfo, Isa::best()),
        memory(&meminfo),
    ];
    // Of version 2; under the first one a container knows its limit by other means.
    findings.extend(read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| group_limit(&text)));
    findings
}

fn cpu(cpuinfo: &str, isa: Isa) -> Finding {
    let model = cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim())
    });
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let what = format!("{}, {cores} cores", model.unwrap_or("unknown"));
    match isa {
        Isa::Avx512 => Finding::ok(ABOUT, "cpu", format!("{what}, AVX-512 with VNNI")),
        Isa::Avx2 => Finding::ok(ABOUT, "cpu", format!("{what}, AVX2, FMA, F16C")),
        Isa::Portable => Finding::missing(
            ABOUT,
            "cpu",
            format!("{what}, no AVX2"),
            "real models run, with portable kernels, at a fraction of the speed",
        ),
    }
}

/// Bytes of a line `name: 123 kB`.
fn meminfo_bytes(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn memory(meminfo: &str) -> Finding {
    let mib = |name| meminfo_bytes(meminfo, name).map(|bytes| ByteSize(bytes >> 20 << 20));
    match (mib("MemTotal"), mib("MemAvailable")) {
        (Some(total), Some(free)) => {
            Finding::ok(ABOUT, "memory", format!("{total}, {free} of them available"))
        }
        _ => Finding::missing(ABOUT, "memory", "/proc/meminfo does not say", "give engines a --kv-memory"),
    }
}

fn group_limit(text: &str) -> Option<Finding> {
    let bytes: u64 = text.trim().parse().ok()?;
    let what = format!("this control group has {}; the KV pool counts", ByteSize(bytes >> 20 << 20));
    Some(Finding::ok(ABOUT, "limit", what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn the_kernel_s_texts_are_read() {
        let found = cpu("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n", Isa::Avx2);
        assert!(found.what.starts_with("Some CPU @ 2 GHz, ") && found.state == State::Ok, "{found:?}");
        assert_eq!(cpu("", Isa::Portable).state, State::Missing);
        let found = memory("MemTotal:       2097152 kB\nMemFree: 1 kB\nMemAvailable:   1048576 kB\n");
        assert_eq!(found.what, "2GiB, 1GiB of them available");
        assert_eq!(memory("").state, State::Missing);
        assert!(group_limit("max\n").is_none());
        assert!(group_limit("1073741824\n").unwrap().what.contains("1GiB"));
    }
}
