//! Threads that work little and often, beside others that work long.
#![allow(unsafe_code)]

use std::mem::size_of;
use std::time::Duration;

/// The shortest that Linux grants.
const SLICE: Duration = Duration::from_micros(100);

/// Asks the scheduler for short slices for the calling thread. It gets no more of the processor by that, but gets it earlier: a
/// thread that copies KV for milliseconds no longer keeps the decode loop waiting until its own slice is over. Needs no privilege;
/// Linux before 6.12 takes no notice (`sched_setattr(2)`: `sched_runtime` of `SCHED_OTHER`), and nothing depends on it.
pub(crate) fn ask_for_short_slices() {
    // Whoever chose another policy for us knows better.
    let Some(mut attributes) = attributes().filter(|it| it.sched_policy == libc::SCHED_OTHER as u32) else {
        return;
    };
    attributes.sched_runtime = SLICE.as_nanos() as u64;
    // SAFETY: the kernel reads the struct, whose size it knows from its first field.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// How the calling thread is scheduled, if the kernel says it.
fn attributes() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: all of its fields are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes, which are the struct's; 0 is the calling thread.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (got == 0).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_policy_and_nice_value() {
        let before = attributes().unwrap();
        ask_for_short_slices();
        let after = attributes().unwrap();
        assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
        // Linux before 6.12 says 0.
        assert!([0, SLICE.as_nanos() as u64].contains(&after.sched_runtime));
    }
}
