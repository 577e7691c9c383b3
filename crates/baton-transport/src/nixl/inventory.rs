//! What a NIXL has: for whoever wonders why it does not do what it should.

use std::path::{Path, PathBuf};

use super::agent::Agent;
use super::config::NixlBackend;
use super::library::{NixlError, NixlLibrary, loads};
use super::ucx;

/// A backend of NIXL's that Baton can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    pub backend: NixlBackend,
    /// Why it cannot be used.
    pub fault: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    pub library: PathBuf,
    /// None where nothing says so: the library itself does not.
    pub version: Option<String>,
    pub plugins: Vec<Plugin>,
    /// What else this NIXL has, which is of no use here.
    pub others: Vec<String>,
    /// Transports and devices that UCX would use with this process's environment, such as `tcp/eth0` and
    /// `rc_mlx5/mlx5_0:1`; or why they cannot be told.
    pub ucx_devices: Result<Vec<String>, String>,
}

impl Inventory {
    /// # Errors
    /// If NIXL makes no agent.
    pub fn of(library: &'static NixlLibrary) -> Result<Self, NixlError> {
        let names = Agent::without_backend(library, "baton-inventory")?.plugins()?;
        let plugin = |backend: NixlBackend| {
            let is_listed = names.iter().any(|name| name == backend.plugin());
            Plugin { backend, fault: fault(&library.path, backend, is_listed) }
        };
        let plugins = [NixlBackend::Ucx, NixlBackend::Libfabric].map(plugin).to_vec();
        let of_use = |name: &String| plugins.iter().any(|plugin| plugin.backend.plugin() == name);
        Ok(Self {
            library: library.path.clone(),
            version: version(&library.path),
            others: names.iter().filter(|name| !of_use(name)).cloned().collect(),
            plugins,
            // It was loaded with its plugin.
            ucx_devices: ucx::devices(),
        })
    }
}

/// Why a backend cannot be used. NIXL lists what it has a file of, and loads it when it is asked for.
fn fault(library: &Path, backend: NixlBackend, is_listed: bool) -> Option<String> {
    let directory = std::env::var_os("NIXL_PLUGIN_DIR").map(PathBuf::from);
    let directory = directory.or_else(|| Some(library.parent()?.join("plugins"))).unwrap_or_default();
    let file = directory.join(format!("libplugin_{}.so", backend.plugin()));
    match (file.exists(), is_listed) {
        (true, _) => loads(&file).err(),
        // It may be a part of the library.
        (false, true) => None,
        (false, false) => Some(format!("there is no {}", file.display())),
    }
}

/// From what lies beside a library: the folder that pip unpacks, or what pkg-config reads.
fn version(library: &Path) -> Option<String> {
    let directory = library.parent()?;
    let of_wheel = || {
        let names = std::fs::read_dir(directory.parent()?).ok()?;
        let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.find_map(|name| {
            let (package, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
            package.starts_with("nixl").then(|| version.to_owned())
        })
    };
    let of_pkg_config = || {
        let text = std::fs::read_to_string(directory.join("pkgconfig/nixl.pc")).ok()?;
        text.lines().find_map(|line| Some(line.strip_prefix("Version:")?.trim().to_owned()))
    };
    of_wheel().or_else(of_pkg_config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_where_one_is_written() {
        let root = std::env::temp_dir().join(format!("baton-inventory-{}", std::process::id()));
        let library = root.join("lib").join("libnixl_capi.so");
        std::fs::create_dir_all(root.join("lib/pkgconfig")).unwrap();
        assert_eq!(version(&library), None);
        std::fs::write(root.join("lib/pkgconfig/nixl.pc"), "Name: nixl\nVersion: 1.4.0\n").unwrap();
        assert_eq!(version(&library).as_deref(), Some("1.4.0"));
        std::fs::create_dir_all(root.join("nixl_cu12-1.5.1.dist-info")).unwrap();
        assert_eq!(version(&library).as_deref(), Some("1.5.1"));
        let why = fault(&library, NixlBackend::Libfabric, false).unwrap();
        assert!(why.contains("libplugin_LIBFABRIC.so"), "{why}");
        assert_eq!(fault(&library, NixlBackend::Libfabric, true), None);
        std::fs::create_dir_all(root.join("lib/plugins")).unwrap();
        std::fs::write(root.join("lib/plugins/libplugin_LIBFABRIC.so"), "no library").unwrap();
        assert!(fault(&library, NixlBackend::Libfabric, true).is_some(), "listed is not loaded");
        std::fs::remove_dir_all(root).unwrap();
    }
}
