//! One agent of NIXL, and what it is asked for.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr::{NonNull, null, null_mut};
use std::time::Duration;

use super::config::NixlBackend;
use super::library::{AgentConfig, Api, Handle, NixlError, NixlLibrary, Status};
use crate::transport::Direction;

/// Memory of the host.
const DRAM: c_int = 0;

/// Bytes that move together, by their addresses on the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub local: usize,
    pub remote: usize,
    pub len: usize,
}

/// An agent. It makes progress in the calls of the one thread that has it; with some backends also in a thread of NIXL's.
pub(super) struct Agent {
    api: &'static Api,
    handle: Handle,
    backend: Handle,
    /// Names the backend.
    args: Handle,
    notifications: Handle,
    /// What is registered, which must be told again to take it back.
    registered: Handle,
}

// SAFETY: NIXL binds no agent to a thread; only one at a time may call it, and every call takes the value.
unsafe impl Send for Agent {}

/// A transfer, from its post until it is over and released.
#[derive(Debug)]
pub(super) struct Request(Handle);

// SAFETY: as for `Agent`, without which nothing can be done with it.
unsafe impl Send for Request {}

/// How a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    Moving,
    Failed(Status),
}

impl From<Status> for Progress {
    fn from(status: Status) -> Self {
        match status {
            Status::SUCCESS => Self::Done,
            Status::IN_PROGRESS => Self::Moving,
            status => Self::Failed(status),
        }
    }
}

fn text(text: &str) -> Result<CString, NixlError> {
    CString::new(text).map_err(|_| NixlError::Text(text.to_owned()))
}

/// Turns the status of the function named into an error, if it is one.
fn check(function: &'static str, status: Status) -> Result<(), NixlError> {
    if status == Status::SUCCESS { Ok(()) } else { Err(NixlError::Call(function, status)) }
}

/// Calls what makes something and puts its handle behind its last argument.
fn made(function: &'static str, make: impl FnOnce(*mut Handle) -> Status) -> Result<Handle, NixlError> {
    let mut handle = null_mut();
    check(function, make(&raw mut handle))?;
    Ok(handle)
}

impl Agent {
    /// An agent of this name, which no other in reach has, with one backend.
    pub fn new(
        library: &'static NixlLibrary,
        name: &str,
        backend: NixlBackend,
        params: &[(String, String)],
    ) -> Result<Self, NixlError> {
        let mut agent = Self::bare(library, name, backend.progress_delay())?;
        let api = agent.api;
        agent.create_backend(backend.plugin(), params)?;
        // SAFETY: `out` is written; the two handles are of the kinds that the function names.
        unsafe {
            agent.args = made("creating arguments", |out| (api.create_opt_args)(out))?;
            check("choosing the backend", (api.opt_args_add_backend)(agent.args, agent.backend))?;
            // `Moving` has merged what can be.
            check("choosing not to merge", (api.opt_args_set_skip_desc_merge)(agent.args, true))?;
            agent.notifications = made("creating a mailbox", |out| (api.create_notif_map)(out))?;
        }
        Ok(agent)
    }

    /// One that moves nothing, and says what NIXL has.
    pub fn without_backend(library: &'static NixlLibrary, name: &str) -> Result<Self, NixlError> {
        Self::bare(library, name, None)
    }

    fn bare(
        library: &'static NixlLibrary,
        name: &str,
        progress_delay: Option<Duration>,
    ) -> Result<Self, NixlError> {
        let (api, name) = (&library.api, text(name)?);
        let config = AgentConfig {
            progress_thread: progress_delay.is_some(),
            listen_thread: false,
            listen_port: 0,
            thread_sync: 0,
            num_workers: 1,
            progress_delay_us: progress_delay.map_or(0, |delay| delay.as_micros() as u64),
            listen_delay_us: 0,
            telemetry: false,
        };
        // SAFETY: name and config are read in the call.
        let handle = made("creating an agent", |out| unsafe {
            (api.create_configured_agent)(name.as_ptr(), &raw const config, out)
        })?;
        let none = null_mut();
        Ok(Self { api, handle, backend: none, args: none, notifications: none, registered: none })
    }

    fn create_backend(&mut self, backend: &str, params: &[(String, String)]) -> Result<(), NixlError> {
        let plugins = self.plugins()?;
        if !plugins.iter().any(|plugin| plugin == backend) {
            return Err(NixlError::NoBackend(backend.to_owned(), plugins.join(", ")));
        }
        let (api, name) = (self.api, text(backend)?);
        let params: Vec<_> =
            params.iter().map(|(key, value)| Ok((text(key)?, text(value)?))).collect::<Result<_, _>>()?;
        // SAFETY: the texts are copied; `params` is destroyed once, after its last use.
        unsafe {
            let handle = made("creating parameters", |out| (api.create_params)(out))?;
            let created = params
                .iter()
                .try_for_each(|(key, value)| {
                    check("setting a parameter", (api.params_add)(handle, key.as_ptr(), value.as_ptr()))
                })
                .and_then(|()| {
                    made("creating the backend", |out| {
                        (api.create_backend)(self.handle, name.as_ptr(), handle, out)
                    })
                });
            (api.destroy_params)(handle);
            self.backend = created?;
        }
        Ok(())
    }

    /// The backends that this NIXL has.
    pub fn plugins(&self) -> Result<Vec<String>, NixlError> {
        let api = self.api;
        let (mut size, mut plugins) = (0, Vec::new());
        // SAFETY: each text lives until the list is destroyed, which happens once, behind its last use.
        unsafe {
            let list = made("listing the plugins", |out| (api.get_available_plugins)(self.handle, out))?;
            (api.string_list_size)(list, &raw mut size);
            for index in 0..size {
                let mut name = null();
                if (api.string_list_get)(list, index, &raw mut name) == Status::SUCCESS && !name.is_null() {
                    plugins.push(CStr::from_ptr(name).to_string_lossy().into_owned());
                }
            }
            (api.destroy_string_list)(list);
        }
        Ok(plugins)
    }

    /// Makes memory known to the network. It must stay where it is for as long as the agent lives.
    pub fn register(&mut self, base: NonNull<u8>, len: usize) -> Result<(), NixlError> {
        let api = self.api;
        // SAFETY: the list is kept until the memory is taken back in `drop`, or destroyed here.
        unsafe {
            let list = made("creating a list", |out| (api.create_reg_dlist)(DRAM, out))?;
            let registered = check(
                "describing the region",
                (api.reg_dlist_add_desc)(list, base.as_ptr() as usize, len, 0, null(), 0),
            )
            .and_then(|()| check("registering the region", (api.register_mem)(self.handle, list, self.args)));
            match registered {
                Ok(()) => self.registered = list,
                Err(_) => drop((api.destroy_reg_dlist)(list)),
            }
            registered
        }
    }

    /// What others need to reach what is registered.
    pub fn metadata(&self) -> Result<Vec<u8>, NixlError> {
        let (mut data, mut len) = (null_mut(), 0);
        // SAFETY: on success `data` has `len` bytes that malloc gave and that are ours to free.
        unsafe {
            check("reading our metadata", (self.api.get_local_md)(self.handle, &raw mut data, &raw mut len))?;
            let bytes = std::slice::from_raw_parts(data.cast::<u8>().cast_const(), len).to_vec();
            libc::free(data);
            Ok(bytes)
        }
    }

    /// Makes another agent known by its metadata; returns its name. Takes some ten milliseconds.
    pub fn load_peer(&self, metadata: &[u8]) -> Result<CString, NixlError> {
        let mut name: *mut c_char = null_mut();
        // SAFETY: the bytes are read in the call; on success `name` is a text that malloc gave and that is ours to free.
        unsafe {
            let loaded = (self.api.load_remote_md)(
                self.handle,
                metadata.as_ptr().cast(),
                metadata.len(),
                &raw mut name,
            );
            check("loading a peer's metadata", loaded)?;
            let owned = CStr::from_ptr(name).to_owned();
            libc::free(name.cast());
            Ok(owned)
        }
    }

    /// Forgets another agent: closes our way to it.
    pub fn forget_peer(&self, name: &CStr) {
        // SAFETY: the text is read in the call. It fails where the agent is forgotten already.
        unsafe { (self.api.invalidate_remote_md)(self.handle, name.as_ptr()) };
    }

    /// Starts a transfer. An error means that nothing of it is in flight.
    pub fn post(&self, direction: Direction, peer: &CStr, pieces: &[Piece]) -> Result<Request, NixlError> {
        let api = self.api;
        let operation = match direction {
            Direction::Read => 0,
            Direction::Write => 1,
        };
        let list = |address: fn(&Piece) -> usize| {
            // SAFETY: `out` is written.
            let list = made("creating a list", |out| unsafe { (api.create_xfer_dlist)(DRAM, out) })?;
            for piece in pieces {
                // SAFETY: a number is added to a list.
                unsafe { (api.xfer_dlist_add_desc)(list, address(piece), piece.len, 0) };
            }
            Ok(list)
        };
        let local = list(|piece| piece.local)?;
        let remote = list(|piece| piece.remote)?;
        // SAFETY: the handles are what they are called; the lists are copied, and destroyed once. The memory of the
        // pieces is registered, on both sides (NIXL refuses what is not), and ours lives as long as the agent.
        unsafe {
            let request = made("preparing a transfer", |out| {
                (api.create_xfer_req)(self.handle, operation, local, remote, peer.as_ptr(), out, self.args)
            });
            (api.destroy_xfer_dlist)(local);
            (api.destroy_xfer_dlist)(remote);
            let request = Request(request?);
            match (api.post_xfer_req)(self.handle, request.0, null_mut()).into() {
                Progress::Done | Progress::Moving => Ok(request),
                Progress::Failed(status) => {
                    self.release(request);
                    Err(NixlError::Call("starting a transfer", status))
                }
            }
        }
    }

    pub fn progress(&self, request: &Request) -> Progress {
        // SAFETY: the request is this agent's and not released.
        unsafe { (self.api.get_xfer_status)(self.handle, request.0) }.into()
    }

    /// Lets go of a transfer that is over.
    pub fn release(&self, request: Request) {
        // SAFETY: the request is this agent's, and it ends here.
        unsafe {
            if (self.api.release_xfer_req)(self.handle, request.0) == Status::SUCCESS {
                (self.api.destroy_xfer_req)(request.0);
            }
        }
    }

    /// Sends a few bytes, which arrive after those of every transfer that is done.
    pub fn notify(&self, peer: &CStr, bytes: &[u8]) -> Result<(), NixlError> {
        // SAFETY: text and bytes are read in the call.
        let sent = unsafe {
            (self.api.gen_notif)(self.handle, peer.as_ptr(), bytes.as_ptr().cast(), bytes.len(), self.args)
        };
        check("notifying a peer", sent)
    }

    /// Makes progress, and calls `hear` with every notification that has come, and the name of its sender.
    pub fn hear(&mut self, mut hear: impl FnMut(&CStr, &[u8])) {
        let (api, map) = (self.api, self.notifications);
        let mut agents = 0;
        // SAFETY: names and bytes belong to the map and live until it is cleared, behind their last use.
        unsafe {
            if (api.get_notifs)(self.handle, map, self.args) != Status::SUCCESS {
                return;
            }
            (api.notif_map_size)(map, &raw mut agents);
            for agent in 0..agents {
                let (mut name, mut count) = (null(), 0);
                if (api.notif_map_get_agent_at)(map, agent, &raw mut name) != Status::SUCCESS {
                    continue;
                }
                (api.notif_map_get_notifs_size)(map, name, &raw mut count);
                for index in 0..count {
                    let (mut data, mut len): (*const c_void, usize) = (null(), 0);
                    let got = (api.notif_map_get_notif)(map, name, index, &raw mut data, &raw mut len);
                    if got == Status::SUCCESS {
                        hear(CStr::from_ptr(name), std::slice::from_raw_parts(data.cast(), len));
                    }
                }
            }
            if agents > 0 {
                (api.notif_map_clear)(map);
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let api = self.api;
        // SAFETY: each handle that was made is destroyed once, the agent behind what it knows of.
        unsafe {
            if !self.registered.is_null() {
                (api.deregister_mem)(self.handle, self.registered, self.args);
                (api.destroy_reg_dlist)(self.registered);
            }
            if !self.notifications.is_null() {
                (api.destroy_notif_map)(self.notifications);
            }
            if !self.args.is_null() {
                (api.destroy_opt_args)(self.args);
            }
            (api.destroy_agent)(self.handle);
            if !self.backend.is_null() {
                (api.destroy_backend)(self.backend);
            }
        }
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Agent")
    }
}
