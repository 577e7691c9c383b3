//! Network devices that reach into memory: InfiniBand, RoCE, and EFA.

use std::fs::{File, read_dir, read_to_string};
use std::path::{Path, PathBuf};

use super::finding::Finding;

const ABOUT: &str = "rdma";
/// Where the kernel lists them.
const DEVICES: &str = "/sys/class/infiniband";
/// What programs open to use them.
const DOORS: &str = "/dev/infiniband";

pub fn has_devices() -> bool {
    !entries(Path::new(DEVICES)).is_empty()
}

pub fn look() -> Vec<Finding> {
    look_at(Path::new(DEVICES), Path::new(DOORS))
}

fn look_at(devices: &Path, doors: &Path) -> Vec<Finding> {
    let devices = entries(devices);
    if devices.is_empty() {
        return vec![Finding::missing(
            ABOUT,
            "devices",
            "none: no InfiniBand, RoCE or EFA",
            "nothing, if there should be none: NIXL then uses TCP, and shared memory within this host",
        )];
    }
    devices.iter().map(|device| look_at_device(device)).chain([access(doors)]).collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = read_dir(directory).into_iter().flatten();
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

fn look_at_device(device: &Path) -> Finding {
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let read =
        |file: &str| read_to_string(device.join("ports/1").join(file)).unwrap_or_default().trim().to_owned();
    let driver = std::fs::read_link(device.join("device/driver")).unwrap_or_default();
    let driver = driver.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (link, state, rate) = (read("link_layer"), read("state"), read("rate"));
    let kind = match (driver.as_str(), link.as_str()) {
        ("efa", _) => "EFA; for --nixl-backend=libfabric",
        (_, "Ethernet") => "RoCE",
        (_, "InfiniBand") => "InfiniBand",
        _ => "of an unknown kind",
    };
    let what = format!("{kind}, driver {driver}, port 1: {state}, {rate}");
    // EFA has no port that goes up or down.
    if driver == "efa" || state.contains("ACTIVE") {
        return Finding::ok(ABOUT, name, what);
    }
    Finding::missing(
        ABOUT,
        name,
        what,
        "look at the cable, the subnet manager (InfiniBand) or the interface (RoCE)",
    )
}

fn access(doors: &Path) -> Finding {
    let is_door =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("uverbs"));
    let doors: Vec<_> = entries(doors).into_iter().filter(is_door).collect();
    let advice =
        "give the container --device=/dev/infiniband, or its pod a resource of the RDMA device plugin";
    if doors.is_empty() {
        return Finding::failed(ABOUT, "access", "there are devices but no /dev/infiniband/uverbs*", advice);
    }
    let opened =
        doors.iter().find_map(|door| Some((door, File::options().read(true).write(true).open(door).err()?)));
    match opened {
        None => {
            Finding::ok(ABOUT, "access", format!("{} of /dev/infiniband/uverbs* can be opened", doors.len()))
        }
        Some((door, error)) => {
            Finding::failed(ABOUT, "access", format!("{}: {error}", door.display()), advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::doctor::finding::State;

    fn device(root: &Path, name: &str, driver: &str, port: [&str; 3]) {
        let device = root.join("class").join(name);
        create_dir_all(device.join("ports/1")).unwrap();
        create_dir_all(device.join("device")).unwrap();
        symlink(format!("../../../bus/pci/drivers/{driver}"), device.join("device/driver")).unwrap();
        for (file, text) in ["link_layer", "state", "rate"].into_iter().zip(port) {
            write(device.join("ports/1").join(file), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn devices_are_told_apart_and_judged() {
        let root = tempfile::tempdir().unwrap();
        let (class, doors) = (root.path().join("class"), root.path().join("doors"));
        assert_eq!(look_at(&class, &doors)[0].state, State::Missing);
        device(root.path(), "mlx5_0", "mlx5_core", ["InfiniBand", "4: ACTIVE", "400 Gb/sec (4X NDR)"]);
        device(root.path(), "mlx5_1", "mlx5_core", ["Ethernet", "1: DOWN", "100 Gb/sec (4X EDR)"]);
        device(root.path(), "rdmap0s6", "efa", ["Unspecified", "", ""]);
        let found = look_at(&class, &doors);
        let states: Vec<_> = found.iter().map(|finding| finding.state).collect();
        assert_eq!(states, [State::Ok, State::Missing, State::Ok, State::Failed]);
        assert!(found[0].what.contains("InfiniBand") && found[0].what.contains("400 Gb/sec"));
        assert!(found[1].what.contains("RoCE") && found[2].what.contains("EFA"));
        create_dir_all(&doors).unwrap();
        write(doors.join("uverbs0"), "").unwrap();
        write(doors.join("rdma_cm"), "").unwrap();
        assert_eq!(look_at(&class, &doors)[3].state, State::Ok);
    }
}
