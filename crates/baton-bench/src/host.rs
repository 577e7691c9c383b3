//! The machine that the client runs on.

use std::fs;

use baton_workload::result::{Client, Host};

pub(crate) fn client() -> Client {
    Client {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: option_env!("BATON_COMMIT").map(str::to_owned),
        host: host(),
    }
}

fn host() -> Host {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    Host {
        cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        memory_bytes: memory_bytes(&read("/proc/meminfo")),
        os: format!("{} {}", std::env::consts::OS, kernel.trim()).trim().to_owned(),
        gpus: gpus(),
    }
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn memory_bytes(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal").and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib * 1024)
}

fn gpus() -> Vec<String> {
    // What NVIDIA's driver tells without a program of its own.
    let Ok(devices) = fs::read_dir("/proc/driver/nvidia/gpus") else { return Vec::new() };
    let information = |device: fs::DirEntry| fs::read_to_string(device.path().join("information")).ok();
    let mut gpus: Vec<String> =
        devices.flatten().filter_map(information).filter_map(|text| field(&text, "Model")).collect();
    gpus.sort();
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_the_kernel_are_read() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: other\n";
        assert_eq!(field(cpuinfo, "model name").as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(memory_bytes("MemTotal:       24000000 kB\nMemFree: 1 kB\n"), 24_576_000_000);
        assert_eq!(memory_bytes(""), 0);
        assert!(host().cores >= 1);
    }
}
