//! What one process may have.

use rustix::process::{Resource, getrlimit};

use super::finding::Finding;
use super::rdma;
use crate::args::ByteSize;
use crate::descriptors;

const ABOUT: &str = "limits";
/// An engine gives a quarter of its descriptors to clients, and as many to other engines.
const FEW_DESCRIPTORS: u64 = 4096;

pub fn look() -> Vec<Finding> {
    let locked = getrlimit(Resource::Memlock);
    // None is no limit. The lower one is in force; a process may raise it to the higher one.
    vec![open_files(descriptors::raise_limit()), memory_lock(locked.current, rdma::has_devices())]
}

fn open_files(limit: u64) -> Finding {
    if limit < FEW_DESCRIPTORS {
        return Finding::missing(
            ABOUT,
            "open files",
            format!("{limit}: at most {} connections of clients to an engine", limit / 4),
            "ulimit -n 65536, LimitNOFILE=65536 in a systemd unit, or --ulimit nofile=65536 of a container",
        );
    }
    let limit = if limit == u64::MAX { "unlimited".to_owned() } else { limit.to_string() };
    Finding::ok(ABOUT, "open files", limit)
}

fn memory_lock(limit: Option<u64>, has_rdma: bool) -> Finding {
    match (limit, has_rdma) {
        (None, _) => Finding::ok(ABOUT, "locked memory", "unlimited"),
        (Some(bytes), false) => {
            let what = format!("{}; without an RDMA device nothing is locked", ByteSize(bytes));
            Finding::ok(ABOUT, "locked memory", what)
        }
        (Some(bytes), true) => Finding::failed(
            ABOUT,
            "locked memory",
            format!("{}: an RDMA device locks the whole KV pool", ByteSize(bytes)),
            "ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 or IPC_LOCK of a container",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn limits_are_judged_by_what_needs_them() {
        assert_eq!(open_files(1024).state, State::Missing);
        assert_eq!(open_files(u64::MAX).what, "unlimited");
        assert_eq!(memory_lock(Some(8 << 20), false).state, State::Ok);
        assert_eq!(memory_lock(Some(8 << 20), true).state, State::Failed);
        assert_eq!(memory_lock(None, true).state, State::Ok);
    }
}
