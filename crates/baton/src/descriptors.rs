//! How many files and connections this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as the system allows without asking, and says what it is then. Shells give 1,024: a server with so many
/// clients would take no more.
pub fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // An error means that the limit stays as it was.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    if raised { maximum } else { current }.unwrap_or(u64::MAX)
}

/// Raises the limit, and says how many connections one kind of client may have: a quarter of it, because each may cost a server a
/// few more, and something is left to everything else.
pub fn for_clients() -> u32 {
    u32::try_from(raise_limit() / 4).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_and_told() {
        let limit = raise_limit();
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), limit);
        assert!(limit >= 256);
    }
}
