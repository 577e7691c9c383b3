//! NIXL's C API, loaded at run time: the same binary runs where there is no NIXL, and says so when it is asked for.
#![allow(unsafe_code)]

use std::error::Error as _;
use std::ffi::{OsStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// The library of the C API, which loads the others.
const FILE: &str = "libnixl_capi.so";

/// The release that `baton nixl install` fetches. The functions bound here are the same from NIXL 1.4 on.
pub const NIXL_VERSION: &str = "1.5.1";

/// Why there is no NIXL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NixlError {
    #[error(
        "NIXL is not installed: no {FILE} in {}; run `baton nixl install`, or set NIXL_PREFIX to where NIXL is",
        searched.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    )]
    Missing { searched: Vec<PathBuf> },
    #[error("{} cannot be used: {why}", path.display())]
    Unusable { path: PathBuf, why: String },
    #[error("NIXL has no backend {0}; it has {1}")]
    NoBackend(String, String),
    #[error(
        "the backend libfabric would use TCP here, for there is no RDMA device, and its TCP says that bytes have arrived when they have \
         not; use --nixl-backend=ucx or --transport=tcp"
    )]
    EarlyCompletions,
    #[error("NIXL: {0} failed ({1})")]
    Call(&'static str, Status),
    #[error("{0:?} is no text that NIXL takes")]
    Text(String),
    #[error("{0}")]
    Io(String),
}

/// What a function of the C API returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Status(c_int);

impl Status {
    pub(super) const SUCCESS: Self = Self(0);
    pub(super) const IN_PROGRESS: Self = Self(1);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            -1 => "a wrong parameter",
            -2 => "the backend failed",
            -3 => "a wrong state",
            -4 => "an exception",
            -6 => "not found",
            other => return write!(f, "status {other}"),
        };
        f.write_str(text)
    }
}

/// A pointer to something of NIXL's, which the function that made it describes.
pub(super) type Handle = *mut c_void;

/// `nixl_capi_agent_config_t` of NIXL's `wrapper.h`.
#[repr(C)]
pub(super) struct AgentConfig {
    pub progress_thread: bool,
    pub listen_thread: bool,
    pub listen_port: c_int,
    pub thread_sync: c_int,
    pub num_workers: c_uint,
    pub progress_delay_us: u64,
    pub listen_delay_us: u64,
    pub telemetry: bool,
}

/// The functions in use, by the names that they have in `wrapper.h` behind `nixl_capi_`.
macro_rules! functions {
    ($($name:ident($($type:ty),*);)*) => {
        pub(super) struct Api {
            $(pub $name: unsafe extern "C" fn($($type),*) -> Status,)*
        }

        impl Api {
            /// # Safety
            /// The library must be NIXL's, and stay loaded.
            unsafe fn bind(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the types are those of `wrapper.h`.
                    $($name: *unsafe { library.get(concat!("nixl_capi_", stringify!($name)))? },)*
                })
            }
        }
    };
}

functions! {
    create_configured_agent(*const c_char, *const AgentConfig, *mut Handle);
    destroy_agent(Handle);
    get_available_plugins(Handle, *mut Handle);
    string_list_size(Handle, *mut usize);
    string_list_get(Handle, usize, *mut *const c_char);
    destroy_string_list(Handle);
    create_params(*mut Handle);
    params_add(Handle, *const c_char, *const c_char);
    destroy_params(Handle);
    create_backend(Handle, *const c_char, Handle, *mut Handle);
    destroy_backend(Handle);
    create_opt_args(*mut Handle);
    opt_args_add_backend(Handle, Handle);
    opt_args_set_skip_desc_merge(Handle, bool);
    destroy_opt_args(Handle);
    create_reg_dlist(c_int, *mut Handle);
    reg_dlist_add_desc(Handle, usize, usize, u64, *const c_void, usize);
    destroy_reg_dlist(Handle);
    register_mem(Handle, Handle, Handle);
    deregister_mem(Handle, Handle, Handle);
    get_local_md(Handle, *mut *mut c_void, *mut usize);
    load_remote_md(Handle, *const c_void, usize, *mut *mut c_char);
    invalidate_remote_md(Handle, *const c_char);
    create_xfer_dlist(c_int, *mut Handle);
    xfer_dlist_add_desc(Handle, usize, usize, u64);
    destroy_xfer_dlist(Handle);
    create_xfer_req(Handle, c_int, Handle, Handle, *const c_char, *mut Handle, Handle);
    post_xfer_req(Handle, Handle, Handle);
    get_xfer_status(Handle, Handle);
    release_xfer_req(Handle, Handle);
    destroy_xfer_req(Handle);
    gen_notif(Handle, *const c_char, *const c_void, usize, Handle);
    create_notif_map(*mut Handle);
    get_notifs(Handle, Handle, Handle);
    notif_map_size(Handle, *mut usize);
    notif_map_get_agent_at(Handle, usize, *mut *const c_char);
    notif_map_get_notifs_size(Handle, *const c_char, *mut usize);
    notif_map_get_notif(Handle, *const c_char, usize, *mut *const c_void, *mut usize);
    notif_map_clear(Handle);
    destroy_notif_map(Handle);
}

/// NIXL, loaded. It stays loaded until the process ends: threads and hooks of its own may outlive every agent.
pub struct NixlLibrary {
    pub path: PathBuf,
    pub(super) api: Api,
}

impl fmt::Debug for NixlLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NixlLibrary({})", self.path.display())
    }
}

impl NixlLibrary {
    /// Loads the first NIXL of those under `$NIXL_PREFIX`, or else in the system's library directories and in
    /// `install_directory`, once for this process.
    ///
    /// # Errors
    /// If there is none, or the first cannot be used.
    pub fn load(install_directory: Option<&Path>) -> Result<&'static Self, NixlError> {
        static LOADED: OnceLock<NixlLibrary> = OnceLock::new();
        if let Some(loaded) = LOADED.get() {
            return Ok(loaded);
        }
        let prefix = std::env::var_os("NIXL_PREFIX").filter(|prefix| !prefix.is_empty());
        let candidates = candidates(prefix.as_deref(), install_directory);
        let Some(path) = candidates.iter().find(|path| path.is_file()) else {
            return Err(NixlError::Missing { searched: candidates });
        };
        let library = Self::open(path)?;
        Ok(LOADED.get_or_init(|| library))
    }

    /// Loads the library at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, NixlError> {
        let unusable = |why: String| NixlError::Unusable { path: path.to_owned(), why };
        // By its absolute path it finds its own libraries, and globally its plugins find what they share with it.
        let path = path.canonicalize().map_err(|error| unusable(error.to_string()))?;
        // SAFETY: what runs when it is loaded is the operator's choice, as with every library of the system.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|error| unusable(reason(&error)))?;
        // SAFETY: it is what stands behind the names of NIXL's C API, and is never unloaded (below).
        let api = unsafe { Api::bind(&library) }.map_err(|error| unusable(reason(&error)))?;
        std::mem::forget(library);
        Ok(Self { path, api })
    }
}

/// Whether the system's loader takes a library, and if not, what it lacks.
pub(super) fn loads(path: &Path) -> Result<(), String> {
    // SAFETY: as in `open`; it is a plugin of the NIXL that the operator chose.
    match unsafe { Library::open(Some(path), RTLD_NOW) } {
        // NIXL's plugins are not made to be unloaded.
        Ok(library) => std::mem::forget(library),
        Err(error) => return Err(reason(&error)),
    }
    Ok(())
}

/// With what the loader said, such as which library is missing.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |said| format!("{error}: {said}"))
}

/// Where a NIXL may be, in the order in which it is looked for.
fn candidates(prefix: Option<&OsStr>, install_directory: Option<&Path>) -> Vec<PathBuf> {
    let machine = format!("{}-linux-gnu", std::env::consts::ARCH);
    let below = |root: &Path| {
        let directories = ["lib".into(), format!("lib/{machine}"), "lib64".into(), String::new()];
        directories.map(|directory| root.join(directory).join(FILE))
    };
    // Whoever names a NIXL means that one and no other.
    if let Some(prefix) = prefix {
        return [&below(Path::new(prefix))[..], &[of_wheel(Path::new(prefix))]].concat();
    }
    let system = ["/usr/local", "/opt/nvidia/nvda_nixl", "/usr"].into_iter();
    let system = system.flat_map(|root| below(Path::new(root)).into_iter().take(3));
    install_directory.map(of_wheel).into_iter().chain(system).collect()
}

/// Where it lies in an unpacked Python package `nixl-cu12`.
pub(super) fn of_wheel(directory: &Path) -> PathBuf {
    directory.join(".nixl_cu12.mesonpy.libs").join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_excludes_every_other_place() {
        let install = Path::new("cache");
        let named = candidates(Some(OsStr::new("mine")), Some(install));
        assert!(
            named.iter().all(|path| path.starts_with("mine"))
                && named.contains(&"mine/lib/libnixl_capi.so".into())
        );
        let found = candidates(None, Some(install));
        assert_eq!(found[0], Path::new("cache/.nixl_cu12.mesonpy.libs/libnixl_capi.so"));
        assert!(found.contains(&"/usr/lib64/libnixl_capi.so".into()));
    }

    #[test]
    fn a_library_that_is_not_nixl_s_is_refused() {
        let none = NixlLibrary::open(Path::new("no such file")).unwrap_err();
        assert!(matches!(none, NixlError::Unusable { .. }));
        let libc = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = libc
            .lines()
            .find_map(|line| Some(&line[line.find('/')?..]).filter(|path| path.contains("libc.so")));
        let other = NixlLibrary::open(Path::new(libc.unwrap())).unwrap_err();
        assert!(other.to_string().contains("nixl_capi_create_configured_agent"), "{other}");
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        let text = NixlError::Missing { searched: vec!["a/b".into(), "c".into()] }.to_string();
        assert!(
            text.contains("no libnixl_capi.so in a/b, c") && text.contains("baton nixl install"),
            "{text}"
        );
    }
}
