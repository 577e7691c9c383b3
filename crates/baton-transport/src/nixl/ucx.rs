//! UCX, as far as it tells what it would use: `ucx_info -d` for those who have a UCX inside NIXL and no such program.
//!
//! Three functions of its stable API are called, on a context that nothing else knows of.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_uint, c_void};
use std::ptr::{null, null_mut};

use libloading::os::unix::{Library, RTLD_NOW};

/// `ucp_params_t`: its first member says which of the others are set, and the second one is which features are wanted. The rest is
/// not read, whatever a version of UCX has there.
#[repr(C)]
struct Params {
    field_mask: u64,
    features: u64,
    rest: [u64; 62],
}

const FEATURES_SET: u64 = 1;
/// Remote memory and active messages: what NIXL asks for.
const RMA_AND_AM: u64 = 1 << 1 | 1 << 6;

/// `ucs_status_t`, an enum of one byte: zero is good.
type Status = i8;
type GetVersion = unsafe extern "C" fn(*mut c_uint, *mut c_uint, *mut c_uint);
type ConfigRead = unsafe extern "C" fn(*const c_char, *const c_char, *mut *mut c_void) -> Status;
type Init = unsafe extern "C" fn(c_uint, c_uint, *const Params, *const c_void, *mut *mut c_void) -> Status;
type Release = unsafe extern "C" fn(*mut c_void);
type Print = unsafe extern "C" fn(*const c_void, *mut libc::FILE);

/// Transports and devices, each as `transport/device`.
///
/// # Errors
/// If this process has no UCX, or it finds nothing to use.
pub(super) fn devices() -> Result<Vec<String>, String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.rsplit('/').next()?.starts_with("libucp").then_some(path)
    });
    let path = path.ok_or("NIXL has loaded no UCX")?;
    let printed = context(path)?;
    let mut devices: Vec<_> = resources(&printed).collect();
    devices.sort();
    devices.dedup();
    Ok(devices)
}

/// What UCX prints of a context.
fn context(path: &str) -> Result<String, String> {
    // SAFETY: it is loaded already; this counts one user more.
    let library = unsafe { Library::open(Some(path), RTLD_NOW) }.map_err(|error| error.to_string())?;
    let missing = |error: libloading::Error| error.to_string();
    // SAFETY: the types are those of UCX's `ucp.h`; the handles are used once each, in the order that it asks for, and the text is
    // read after the stream that writes it is closed.
    unsafe {
        let version = library.get::<GetVersion>("ucp_get_version").map_err(missing)?;
        let read = library.get::<ConfigRead>("ucp_config_read").map_err(missing)?;
        let release = library.get::<Release>("ucp_config_release").map_err(missing)?;
        let init = library.get::<Init>("ucp_init_version").map_err(missing)?;
        let print = library.get::<Print>("ucp_context_print_info").map_err(missing)?;
        let cleanup = library.get::<Release>("ucp_cleanup").map_err(missing)?;

        let (mut major, mut minor, mut patch) = (0, 0, 0);
        version(&raw mut major, &raw mut minor, &raw mut patch);
        let (mut config, mut context) = (null_mut(), null_mut());
        if read(null(), null(), &raw mut config) != 0 {
            return Err("UCX cannot read its environment".to_owned());
        }
        let params = Params { field_mask: FEATURES_SET, features: RMA_AND_AM, rest: [0; 62] };
        let status = init(major, minor, &raw const params, config, &raw mut context);
        release(config);
        if status != 0 {
            return Err(format!("UCX finds nothing to use (status {status})"));
        }
        let (mut text, mut len) = (null_mut(), 0);
        let stream = libc::open_memstream(&raw mut text, &raw mut len);
        if stream.is_null() {
            cleanup(context);
            return Err("no memory".to_owned());
        }
        print(context, stream);
        cleanup(context);
        libc::fclose(stream);
        let printed = String::from_utf8_lossy(std::slice::from_raw_parts(text.cast(), len)).into_owned();
        libc::free(text.cast());
        Ok(printed)
    }
}

/// `#      resource 1  :  md 1  dev 1  flags -- tcp/lo`
fn resources(printed: &str) -> impl Iterator<Item = String> {
    let of_resources = printed.lines().filter(|line| line.contains("resource "));
    of_resources.filter_map(|line| line.split_whitespace().last()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_read() {
        let printed = "#\n# UCP context\n#\n#     component 0  :  self\n#            md 0  :  component 0  self \n#\n\
                       #      resource 0  :  md 0  dev 0  flags -- self/memory0\n\
                       #      resource 1  :  md 1  dev 1  flags -- tcp/lo\n#\n";
        assert_eq!(resources(printed).collect::<Vec<_>>(), ["self/memory0", "tcp/lo"]);
    }

    #[test]
    fn where_there_is_no_ucx_that_is_said() {
        assert!(devices().unwrap_err().contains("no UCX"));
    }
}
