//! What a peer cannot make grow or spin by saying the same few words again and again. Each word is one that an engine may say.

use baton_proto::message::VERSION;
use baton_proto::{Compat, Config, ConnId, Endpoint, Input, Message, Output, codec};
use baton_types::{EngineId, EngineName, KvDtype, PoolShape, Time, TransferId};

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
