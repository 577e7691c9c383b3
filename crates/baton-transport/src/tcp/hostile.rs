//! What the fuzzer plays with the frames of `tcp` (`cargo x fuzz tcp_frame`); the test below plays what it found before.

use super::crc::crc32c;
use super::frame::{CRC_AT, Frame, HEAD};

/// Any bytes are a frame, a part of one, or a fault, and a frame reads back as it was written.
///
/// # Panics
/// If that is not so.
pub fn play_frame(data: &[u8]) {
    check(data);
    // Most of what lies behind the check sum is reached only with a right one. Tails are tried by their length in the head, which
    // counts bytes or runs of 12.
    let Some((head, rest)) = data.split_first_chunk::<HEAD>() else { return };
    let count = usize::from(u16::from_le_bytes([head[2], head[3]]));
    for tail_bytes in [0, count, count * 12] {
        let Some(tail) = rest.get(..tail_bytes) else { continue };
        let mut mended = data.to_vec();
        let crc = crc32c(crc32c(0, &head[..CRC_AT]), tail);
        mended[CRC_AT..HEAD].copy_from_slice(&crc.to_le_bytes());
        check(&mended);
    }
}

fn check(bytes: &[u8]) {
    let Ok(Some((frame, len))) = Frame::decode(bytes) else { return };
    assert!(len <= bytes.len(), "no longer than what is there");
    let mut again = Vec::new();
    frame.encode(&mut again);
    assert_eq!(Frame::decode(&again), Ok(Some((frame, again.len()))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_from_the_corpus() {
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/tcp_frame");
        let mut played = 0;
        for entry in seeds.read_dir().expect("the seeds are in the repository") {
            let path = entry.expect("a file of the repository").path();
            println!("{}", path.display());
            play_frame(&std::fs::read(path).expect("a file of the repository"));
            played += 1;
        }
        assert!(played > 0, "no seeds in {}", seeds.display());
    }
}
