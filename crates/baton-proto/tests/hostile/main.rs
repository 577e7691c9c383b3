//! Whatever a peer sends. The fuzzers of the crate `fuzz` run these very games for hours (`cargo x fuzz`); here they are played with
//! the inputs that were worth keeping, and with a few thousand random ones.

mod codec;
mod one_peer;
mod side_channel;

use std::path::Path;

use proptest::prelude::*;

/// Every input under `fuzz/seeds` for this target.
fn replay(target: &str, play: fn(&[u8])) {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut played = 0;
    for entry in seeds.read_dir().expect("the seeds are in the repository") {
        let path = entry.expect("a file of the repository").path();
        // Shown only if the game fails.
        println!("{}", path.display());
        play(&std::fs::read(&path).expect("a file of the repository"));
        played += 1;
    }
    assert!(played > 0, "no seeds in {}", seeds.display());
}

#[test]
fn frames_from_the_corpus() {
    replay("codec", codec::play);
}

#[test]
fn side_channels_from_the_corpus() {
    replay("side_channel", side_channel::play);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_frame(data in prop::collection::vec(any::<u8>(), 0..200)) {
        codec::play(&data);
    }

    #[test]
    fn any_side_channel(data in prop::collection::vec(any::<u8>(), 0..3000)) {
        side_channel::play(&data);
    }
}
