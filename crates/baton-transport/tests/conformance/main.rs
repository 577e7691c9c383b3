//! What every transport must do, run for each of them.

mod agent;
mod endings;
mod fabric;
mod moves;
mod nixl_strangers;
mod permits;
mod process;
mod setup;
mod strangers;
mod tcp_strangers;

use fabric::{MemoryFabric, NixlFabric, ShmFabric, TcpFabric};

macro_rules! conformance {
    ($($module:ident :: $case:ident),* $(,)?) => {
        conformance!(@each memory, MemoryFabric::default(), $($module::$case),*);
        conformance!(@each shm, ShmFabric, $($module::$case),*);
        conformance!(@each tcp, TcpFabric::default(), $($module::$case),*);
        conformance!(@each tcp_v6_crc, TcpFabric::v6_crc(), $($module::$case),*);
        conformance!(@each tcp_tls, TcpFabric::tls(), $($module::$case),*);
        conformance!(@each tcp_tls_crc, TcpFabric::tls_crc(), $($module::$case),*);
        conformance!(@with_nixl nixl, NixlFabric, $($module::$case),*);
    };
    (enforcing: $($module:ident :: $case:ident),* $(,)?) => {
        mod enforcing {
            use super::*;
            conformance!(@each memory, MemoryFabric::default(), $($module::$case),*);
            conformance!(@each tcp, TcpFabric::default(), $($module::$case),*);
            conformance!(@each tcp_v6_crc, TcpFabric::v6_crc(), $($module::$case),*);
            conformance!(@each tcp_tls, TcpFabric::tls(), $($module::$case),*);
        }
    };
    (@with_nixl $transport:ident, $fabric:expr, $($module:ident :: $case:ident),*) => {
        mod $transport {
            use super::*;
            $(#[test] #[ignore = "needs NIXL: cargo x nixl"] fn $case() { $module::$case(&$fabric); })*
        }
    };
    (@each $transport:ident, $fabric:expr, $($module:ident :: $case:ident),*) => {
        mod $transport {
            use super::*;
            $(#[test] fn $case() { $module::$case(&$fabric); })*
        }
    };
}

conformance! {
    setup::a_region_is_registered_once,
    setup::any_other_metadata_is_refused,
    setup::adding_a_peer_twice_changes_nothing,
    setup::an_agent_is_not_its_own_peer,
    setup::peers_beyond_the_limit_are_refused,
    setup::a_post_waits_until_the_peer_has_added_us_too,
    setup::a_peer_that_never_adds_us_is_lost,
    setup::both_sides_may_add_at_once,
    setup::the_waker_ends_a_sleep,
    moves::bytes_arrive_where_they_should,
    moves::bytes_that_are_no_pair_s_stay,
    moves::zero_pairs_only_notify,
    moves::the_most_pairs_move_and_more_are_refused,
    moves::bad_posts_are_refused_and_start_nothing,
    moves::a_notification_comes_once_and_after_the_bytes,
    moves::long_posts_share_with_short_ones_both_ways,
    moves::a_peer_that_does_not_read_delays_only_its_own_posts,
    endings::removing_a_peer_fails_its_posts_and_then_loses_it,
    endings::both_sides_see_the_end,
    endings::a_dropped_agent_is_lost_to_the_others,
    endings::a_lost_peer_may_come_back,
    endings::a_restarted_engine_is_another_peer,
    endings::nothing_is_left_of_many_peers,
}

conformance! {
    enforcing:
    permits::what_is_not_permitted_is_refused,
    permits::a_shared_block_stays_permitted_until_the_last,
    permits::nothing_lands_after_a_permit_is_taken_back,
    permits::nothing_is_read_after_a_permit_is_taken_back,
}
