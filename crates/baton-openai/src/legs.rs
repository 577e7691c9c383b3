//! What a router does to a request's body: takes out what a client must not say, and makes the two legs. The rules are
//! vLLM's; Baton engines follow them too.

use crate::body::{Body, BodyError, RawJson};

/// The member that carries a hand-off, in requests and in answers.
pub const KV_TRANSFER_PARAMS: &str = "kv_transfer_params";

/// Every place from which vLLM reads transfer parameters. A client that reached one could crash an engine, or make it dial
/// an address of the client's choice.
const INTERNAL: &[&[&str]] = &[
    &[KV_TRANSFER_PARAMS],
    &["ec_transfer_params"],
    &["vllm_xargs", KV_TRANSFER_PARAMS],
    &["sampling_params", "extra_args", KV_TRANSFER_PARAMS],
];

impl Body {
    /// Removes what only the router may say to an engine; true if there was anything.
    ///
    /// # Errors
    /// If a nested object on the way has a key twice: nobody can say which of them an engine would read.
    pub fn strip_internal(&mut self) -> Result<bool, BodyError> {
        let mut found = false;
        for path in INTERNAL {
            found |= self.remove_path(path)?.is_some();
        }
        Ok(found)
    }

    /// The body of the prefill leg: one token, not streamed, with `params`. Everything else is the client's.
    #[must_use]
    pub fn prefill_leg(&self, params: RawJson) -> Self {
        let mut leg = self.clone();
        leg.set("stream", RawJson::FALSE);
        leg.remove("stream_options");
        leg.set("max_tokens", RawJson::ONE);
        // The newer names win over `max_tokens` where they are there.
        for name in ["max_completion_tokens", "max_output_tokens"] {
            if leg.contains(name) {
                leg.set(name, RawJson::ONE);
            }
        }
        leg.remove("min_tokens");
        leg.set("n", RawJson::ONE);
        leg.set(KV_TRANSFER_PARAMS, params);
        leg
    }

    /// The body of the decode leg: the client's, with the handle as it came.
    #[must_use]
    pub fn decode_leg(&self, params: RawJson) -> Self {
        let mut leg = self.clone();
        leg.set(KV_TRANSFER_PARAMS, params);
        leg
    }
}
