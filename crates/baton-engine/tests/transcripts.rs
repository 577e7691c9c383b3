//! What is said and done in one hand-off of each kind, to be read. Columns: milliseconds, engine, in or out.

mod toy;

use std::time::Duration;

use baton_types::{Time, TransferId, TransferMode};
use expect_test::{Expect, expect};
use toy::pair::{Job, Pair, config};
use toy::prompt;

fn check(mode: TransferMode, expected: Expect) {
    let mut pair = Pair::new([config(0, 16, 4), config(1, 16, 4)]);
    let job = Job {
        source: 0,
        mode,
        prompt: prompt(1, 18),
        max_tokens: 3,
        lag: Duration::from_millis(2),
        destination_first: false,
        abandoned: false,
        turns: 0,
        edited_from: None,
        kept: None,
    };
    pair.start(Time::ZERO, job, TransferId(1));
    pair.run_to_end();
    expected.assert_eq(&pair.log);
}

#[test]
fn a_pull() {
    check(
        TransferMode::Pull,
        expect![[r#"
            0   P <- submit s0: 18 tokens, Pull x1 to a peer
            0   P -> step 1: s0 0..8 in [b0, b1]
            10  P <- stepped 1
            10  P -> step 2: s0 8..16 in [b0, b1, b2, b3]
            20  P <- stepped 2
            20  P -> step 3: s0 16..18! in [b0, b1, b2, b3, b4]
            30  P <- stepped 3
            30  P -> token 43 for s0
            30  P -> finished s0: Length, 18 prompt (0 cached, 0 received) + 1, handle x1
            32  D <- submit s0: 18 tokens, Pull x1 from P
            35  D -> say Claim x1 from unit 0 of 5
            36  P -> say Granted x1 [u0, u1, u2, u3, u4] for 28000ms
            37  D -> post 0 Read u0:u0 u1:u1 u2:u2 u3:u3 u4:u4
            40  D <- moved 0
            40  D -> say Done { transfer: x1, notifications: 0, prefilled: None }
            40  D -> step 1: s0 18..19! in [b0, b1, b2, b3, b4]
            40  D -> token 43 for s0
            41  P -> say DoneAck { transfer: x1 }
            50  D <- stepped 1
            50  D -> step 2: s0 19..20! in [b0, b1, b2, b3, b4]
            50  D -> token 34 for s0
            60  D <- stepped 2
            60  D -> token 36 for s0
            60  D -> finished s0: Length, 18 prompt (0 cached, 18 received) + 3
        "#]],
    );
}

#[test]
fn a_push() {
    check(
        TransferMode::Push,
        expect![[r#"
            0   P <- submit s0: 18 tokens, Push x1 to a peer
            0   P -> step 1: s0 0..8 in [b0, b1]
            2   D <- submit s0: 18 tokens, Push x1 from P
            5   D -> say Register x1 from unit 0
            6   P -> say Claim x1 from unit 0 of 5
            7   D -> say Granted x1 [u0, u1, u2, u3, u4] for 28000ms
            10  P <- stepped 1
            10  P -> post 0 Write u0:u0 u1:u1
            10  P -> step 2: s0 8..16 in [b0, b1, b2, b3]
            13  P <- moved 0
            14  D <- notified
            20  P <- stepped 2
            20  P -> post 1 Write u2:u2 u3:u3
            20  P -> step 3: s0 16..18! in [b0, b1, b2, b3, b4]
            23  P <- moved 1
            24  D <- notified
            30  P <- stepped 3
            30  P -> post 2 Write u4:u4
            30  P -> say Done { transfer: x1, notifications: 3, prefilled: Some(Prefilled { first_token: 43, cached_tokens: 0 }) }
            30  P -> token 43 for s0
            30  P -> finished s0: Length, 18 prompt (0 cached, 0 received) + 1, handle x1
            33  P <- moved 2
            34  D <- notified
            34  D -> say DoneAck { transfer: x1 }
            34  D -> step 1: s0 18..19! in [b0, b1, b2, b3, b4]
            34  D -> token 43 for s0
            44  D <- stepped 1
            44  D -> step 2: s0 19..20! in [b0, b1, b2, b3, b4]
            44  D -> token 34 for s0
            54  D <- stepped 2
            54  D -> token 36 for s0
            54  D -> finished s0: Length, 18 prompt (0 cached, 18 received) + 3
        "#]],
    );
}
