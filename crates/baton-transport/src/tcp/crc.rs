//! CRC32C of heads and payloads, whose bytes come in pieces.

use crc_fast::{CrcAlgorithm::Crc32Iscsi, Digest};

/// CRC32C (Castagnoli; RFC 3720, B.4) of the bytes whose CRC32C is `before` and of `bytes` behind them. Of no bytes it is 0.
pub(super) fn crc32c(before: u32, bytes: &[u8]) -> u32 {
    // The algorithm keeps the complement of what it gives.
    let mut digest = Digest::new_with_init_state(Crc32Iscsi, u64::from(!before));
    digest.update(bytes);
    // Of 32 bits, in a type that has room for others.
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, B.4, and the check value of the catalogue.
    #[test]
    fn published_values_however_cut() {
        let ascending: Vec<u8> = (0..32).collect();
        let published: [(&[u8], u32); 5] = [
            (b"", 0),
            (b"123456789", 0xe306_9283),
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
        ];
        for (bytes, crc) in published {
            for cut in 0..=bytes.len() {
                let (head, tail) = bytes.split_at(cut);
                assert_eq!(crc32c(crc32c(0, head), tail), crc, "{bytes:?} cut at {cut}");
            }
        }
    }
}
