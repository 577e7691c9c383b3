//! What one peer cannot do with a few words, each of which an engine may say: make something grow or spin, or write where it must not.

use std::time::Duration;

use baton_proto::message::VERSION;
use baton_proto::{
    Compat, Config, ConnId, Endpoint, Event, Held, Input, Message, Output, PeerAddress, codec,
};
use baton_types::{BlockHash, EngineId, EngineName, KvDtype, PoolShape, Time, TransferId, UnitId};

const COMPAT: Compat = Compat([7; 16]);

fn engine(name: &str) -> EngineId {
    EngineId::new(EngineName::new(name).unwrap(), 1)
}

fn shape() -> PoolShape {
    PoolShape::whole_blocks(8, KvDtype::F32)
}

fn endpoint() -> Endpoint {
    Endpoint::new(Config::new(engine("us"), COMPAT, vec![], shape()))
}

/// What follows an input.
fn give(endpoint: &mut Endpoint, now: Time, input: Input) -> Vec<Output> {
    endpoint.handle_input(now, input);
    std::iter::from_fn(|| endpoint.poll_output()).collect()
}

fn hear(endpoint: &mut Endpoint, now: Time, conn: ConnId, message: Message) -> Vec<Output> {
    give(endpoint, now, Input::Received { conn, frame: codec::encode(&message) })
}

/// The peer's part of a handshake.
fn shake_hands(endpoint: &mut Endpoint, now: Time, conn: ConnId) {
    hear(endpoint, now, conn, Message::Hello { version: VERSION, engine: engine("peer"), compat: COMPAT });
    hear(endpoint, now, conn, Message::Welcome { metadata: vec![], shape: shape() });
}

fn said(outputs: &[Output]) -> Vec<&Message> {
    let messages = outputs.iter().filter_map(|output| match output {
        Output::Send { message, .. } => Some(message),
        _ => None,
    });
    messages.collect()
}

/// I11: what is withdrawn leaves nothing behind that waits for its time.
#[test]
fn registrations_that_are_withdrawn_at_once_leave_no_timers() {
    let (mut us, conn) = (endpoint(), ConnId(1));
    give(&mut us, Time::ZERO, Input::Accepted { conn });
    shake_hands(&mut us, Time::ZERO, conn);
    for id in 0..100_000 {
        let transfer = TransferId(id);
        hear(&mut us, Time::ZERO, conn, Message::Register { transfer, first_unit: 0 });
        hear(&mut us, Time::ZERO, conn, Message::Abort { transfer });
    }
    us.check();
    assert_eq!(us.census().registrations, 0);
}

/// A destination and a source that were told of different strategies: the destination hears of it, whichever came first.
#[test]
fn who_registers_with_the_source_of_a_pull_is_told_at_once() {
    let (mut us, conn, transfer) = (endpoint(), ConnId(1), TransferId(1));
    give(&mut us, Time::ZERO, Input::Accepted { conn });
    shake_hands(&mut us, Time::ZERO, conn);
    give(&mut us, Time::ZERO, Input::Offer { transfer, chain: vec![BlockHash([1; 16])] });
    let answer = hear(&mut us, Time::ZERO, conn, Message::Register { transfer, first_unit: 0 });
    assert_eq!(said(&answer), [&Message::Abort { transfer }]);
    assert_eq!(us.census().registrations, 0);
    us.check();
}

/// A peer that lets us in and closes again, as one does that still waits for the fence of our former path, is not dialled as fast
/// as it can close.
#[test]
fn a_peer_that_closes_after_each_handshake_is_dialled_with_a_pause() {
    let mut us = endpoint();
    let address = PeerAddress { engine: engine("peer"), host: "peer".to_owned(), port: 1 };
    let (mut now, mut dials, end) = (Time::ZERO, 0, Time::ZERO + Duration::from_secs(10));
    let expect = Input::Expect { transfer: TransferId(1), peer: address.clone(), early: false };
    let mut outputs = give(&mut us, now, expect);
    while now < end {
        if outputs.iter().any(|output| matches!(output, Output::Dial { .. })) {
            let conn = ConnId(dials);
            dials += 1;
            assert!(dials < 100, "dialled {dials} times in {now:?}");
            give(&mut us, now, Input::Connected { address: address.clone(), conn });
            shake_hands(&mut us, now, conn);
            outputs = give(&mut us, now, Input::Closed { conn });
            us.check();
        } else {
            now = us.poll_timeout().expect("it is dialled again").0;
            outputs = give(&mut us, now, Input::Tick);
        }
    }
    assert!(dials >= 5, "it is still sought: {dials}");
}

/// A peer may have given up its end of a path and be back before we hear of that: nothing orders the path's end and the new
/// connection. What it is granted then it posts to a path that it has made anew and that waits for ours. When the old path is lost
/// those units are free, so for as long as such posts may wait there must be no path that lets them in (I3).
#[test]
fn who_is_back_before_its_old_path_is_lost_stays_out_while_its_posts_may_wait() {
    let (mut us, transfer, mut now) = (endpoint(), TransferId(1), Time::ZERO);
    let enter = |us: &mut Endpoint, now, conn| {
        give(us, now, Input::Accepted { conn });
        let hello = Message::Hello { version: VERSION, engine: engine("peer"), compat: COMPAT };
        hear(us, now, conn, hello);
        let outputs = hear(us, now, conn, Message::Welcome { metadata: vec![], shape: shape() });
        outputs.iter().any(|output| matches!(output, Output::AddPath { .. }))
    };
    assert!(enter(&mut us, now, ConnId(1)), "a path");
    // That the first connection has ended may be heard before or after this.
    assert!(!enter(&mut us, now, ConnId(2)), "the same, as far as we know");

    let (chain, conn) = (vec![BlockHash([1; 16])], ConnId(2));
    let peer = PeerAddress { engine: engine("peer"), host: "peer".to_owned(), port: 1 };
    let units = vec![UnitId(3)];
    give(&mut us, now, Input::Receive { transfer, peer, chain: chain.clone(), first_unit: 0, units });
    let claim = Message::Claim { transfer, attempt: 0, first_unit: 0, chain, held: Held::Offered };
    let granted = hear(&mut us, now, conn, claim);
    assert!(matches!(said(&granted)[..], [Message::Granted { .. }]));
    let lost = give(&mut us, now, Input::PathLost { engine: engine("peer") });
    let released = |output: &Output| matches!(output, Output::Event(Event::Released { .. }));
    assert!(lost.iter().any(released), "its posts are not let in: {lost:?}");

    for conn in 3..6 {
        assert!(!enter(&mut us, now, ConnId(conn)), "they would be now");
        now += Duration::from_secs(9);
        give(&mut us, now, Input::Tick);
        us.check();
    }
    now += Duration::from_secs(30);
    give(&mut us, now, Input::Tick);
    assert!(enter(&mut us, now, ConnId(6)), "they have ended by now");
}
