//! What a decode engine's answer says about the KV that it retains.

use std::time::Duration;

use baton_openai::RawJson;
use baton_routing::Retained;
use baton_types::KvTransferParams;

/// Reads an answer's `kv_transfer_params`; none where they say something else, or are not a Baton engine's. Its host and port
/// are left out: the router knows where its engines are.
pub(crate) fn read(params: &RawJson) -> Option<Retained> {
    let params: KvTransferParams = params.read().ok()?;
    if !params.do_remote_decode || params.do_remote_prefill {
        return None;
    }
    Some(Retained {
        engine: params.remote_engine_id?.parse().ok()?,
        transfer: params.transfer_id?,
        tokens: params.remote_num_tokens?,
        ttl: Duration::from_millis(params.remote_ttl_ms?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,
        "transfer_id":"xfer-0000000000000000000000000000000b","remote_engine_id":"d@0000000000000001",
        "remote_host":"10.0.0.1","remote_port":5600,"tp_size":1,"remote_num_tokens":64,"remote_ttl_ms":480000}"#;

    #[test]
    fn only_a_complete_word_counts() {
        let read = |text: String| super::read(&RawJson::parse(text).unwrap());
        let retained = read(GOOD.to_owned()).unwrap();
        assert_eq!((retained.engine.to_string().as_str(), retained.transfer.0), ("d@0000000000000001", 11));
        assert_eq!((retained.tokens, retained.ttl), (64, Duration::from_secs(480)));
        for (part, other) in [
            (r#""do_remote_decode":true"#, r#""do_remote_decode":false"#),
            (r#""do_remote_prefill":false"#, r#""do_remote_prefill":true"#),
            ("xfer-", "x"),
            ("transfer_id", "id"),
            ("d@", "@"),
            (r#""remote_engine_id":"d@0000000000000001","#, ""),
            (r#""remote_num_tokens":64,"#, ""),
            ("64", "-64"),
            ("remote_ttl_ms", "remote_blocks_expiry_time"),
        ] {
            let bad = GOOD.replacen(part, other, 1);
            assert_ne!(bad, GOOD);
            assert_eq!(read(bad), None, "{other}");
        }
        assert_eq!(read("3".to_owned()), None);
    }
}
