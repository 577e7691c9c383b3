//! The request of a leg: the client's body with its few edits, and headers of the router's own.

use baton_openai::body::RawJson;
use baton_openai::legs::KV_TRANSFER_PARAMS;
use baton_openai::{Body, Endpoint};
use baton_routing::{LegStart, Reuse};
use baton_trace::TraceParent;
use baton_types::{KvTransferParams, LegKind, TransferMode};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Request, Uri};
use serde_json::json;

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const X_BATON_TENANT: HeaderName = HeaderName::from_static("x-baton-tenant");

/// Headers of clients that engines get to see. Everything else stays here: hop-by-hop headers, ids, data-parallel ranks,
/// priorities, `X-Baton-*`, and `Accept-Encoding`, since an answer must be readable on its way.
const FORWARDED: [HeaderName; 4] = [
    hyper::header::AUTHORIZATION,
    hyper::header::USER_AGENT,
    HeaderName::from_static(TraceParent::HEADER),
    HeaderName::from_static("tracestate"),
];

/// What a client asked, as all legs of all attempts need it.
#[derive(Debug)]
pub(crate) struct Ask {
    pub endpoint: Endpoint,
    /// Without what only the router may say.
    pub body: Body,
    pub streaming: bool,
    /// The forwarded ones and the tenant.
    pub headers: HeaderMap,
}

/// The headers that engines may see; the tenant is the value of `tenant_header`, if there is one.
pub(crate) fn forwarded_headers(client: &HeaderMap, tenant_header: Option<&HeaderName>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in FORWARDED {
        if let Some(value) = client.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    if let Some(tenant) = tenant_header.and_then(|name| client.get(name)) {
        headers.insert(X_BATON_TENANT, tenant.clone());
    }
    headers
}

impl Ask {
    /// The request of one leg. `handle` is what the prefill leg of this attempt answered with, if it has; `parent` the span that its
    /// engine is to continue, where the router has one.
    pub fn leg(
        &self,
        start: &LegStart,
        handle: Option<RawJson>,
        parent: Option<TraceParent>,
    ) -> Request<Full<Bytes>> {
        let body = match (start.kind, transfer_params(start, handle)) {
            (LegKind::Prefill, Some(params)) => self.body.prefill_leg(params),
            (LegKind::Decode, Some(params)) => self.body.decode_leg(params),
            (_, None) | (LegKind::Whole, _) => {
                debug_assert!(!self.body.contains(KV_TRANSFER_PARAMS), "stripped on arrival");
                self.body.clone()
            }
        };
        let mut request = Request::new(Full::new(body.to_bytes()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(self.endpoint.path());
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let id = HeaderValue::try_from(request_id(start)).expect("hex digits");
        request.headers_mut().insert(X_REQUEST_ID, id);
        if let Some(parent) = parent {
            let parent = HeaderValue::try_from(parent.to_string()).expect("hex digits");
            request.headers_mut().insert(TraceParent::HEADER, parent);
        }
        request
    }
}

/// The id under which engines know an attempt: new with each, the same on both legs, since vLLM pairs them by it.
fn request_id(start: &LegStart) -> String {
    format!("baton-{:032x}", start.transfer.0)
}

fn transfer_params(start: &LegStart, handle: Option<RawJson>) -> Option<RawJson> {
    let mode = start.mode?;
    match (start.kind, mode) {
        (LegKind::Whole, _) => None,
        (LegKind::Prefill, _) => Some(RawJson::of(&KvTransferParams {
            do_remote_decode: true,
            transfer_mode: Some(mode),
            transfer_id: Some(start.transfer),
            reuse: start.reuse.as_ref().map(|reuse| Box::new(reuse_params(reuse))),
            ..KvTransferParams::default()
        })),
        // The handle is opaque: as it came. Without one the core starts no decode leg.
        (LegKind::Decode, TransferMode::Pull) => handle,
        (LegKind::Decode, TransferMode::EarlyPull | TransferMode::Push) => {
            let peer = start.peer.as_ref()?;
            Some(RawJson::of(&json!({
                "do_remote_prefill": true,
                "do_remote_decode": false,
                "transfer_mode": mode,
                "transfer_id": start.transfer,
                "remote_engine_id": peer.id,
                "remote_request_id": request_id(start),
                "remote_host": peer.host,
                "remote_port": peer.port,
                "tp_size": 1,
                "pp_size": 1,
            })))
        }
    }
}

/// What a decode engine retains, as it said so itself.
fn reuse_params(reuse: &Reuse) -> KvTransferParams {
    KvTransferParams {
        do_remote_decode: true,
        transfer_id: Some(reuse.transfer),
        remote_engine_id: Some(reuse.holder.id.to_string()),
        remote_host: Some(reuse.holder.host.clone()),
        remote_port: Some(reuse.holder.port),
        tp_size: Some(1),
        remote_num_tokens: Some(reuse.tokens),
        remote_ttl_ms: Some(u64::try_from(reuse.ttl.as_millis()).unwrap_or(u64::MAX)),
        ..KvTransferParams::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use baton_routing::{EngineKey, LegId, Peer, RequestId};
    use baton_types::{EngineId, EngineName, TransferId};
    use http_body_util::BodyExt;

    use super::*;

    fn start(kind: LegKind, mode: TransferMode) -> LegStart {
        let id = EngineId::new(EngineName::new("p").unwrap(), 7);
        LegStart {
            leg: LegId(1),
            request: RequestId(1),
            engine: EngineKey(0),
            kind,
            mode: Some(mode),
            transfer: TransferId(9),
            peer: Some(Peer { engine: EngineKey(1), id, host: "::1".into(), port: 5600 }),
            reuse: None,
            attempt: 1,
        }
    }

    fn params(leg: &str) -> KvTransferParams {
        let body = Body::parse(Bytes::copy_from_slice(leg.as_bytes()), 1 << 20).unwrap();
        body.read(KV_TRANSFER_PARAMS).unwrap().unwrap()
    }

    fn ask(body: &str) -> Ask {
        let body = Body::parse(Bytes::copy_from_slice(body.as_bytes()), 1 << 20).unwrap();
        Ask { endpoint: Endpoint::Completions, body, streaming: true, headers: HeaderMap::new() }
    }

    async fn text(request: Request<Full<Bytes>>) -> String {
        String::from_utf8(request.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_push_pair_shares_ids_and_tells_decode_where_prefill_is() {
        let ask = ask(r#"{ "prompt" : "é", "max_tokens":7.0,"odd":1e2 }"#);
        let prefill = ask.leg(&start(LegKind::Prefill, TransferMode::Push), None, None);
        let decode = ask.leg(&start(LegKind::Decode, TransferMode::Push), None, None);
        assert_eq!(prefill.headers()[X_REQUEST_ID], decode.headers()[X_REQUEST_ID]);
        let prefill = text(prefill).await;
        assert!(prefill.starts_with(r#"{ "prompt" : "é", "max_tokens":1,"odd":1e2 "#), "{prefill}");
        let decode = text(decode).await;
        assert!(decode.starts_with(r#"{ "prompt" : "é", "max_tokens":7.0,"odd":1e2 "#), "{decode}");
        let params = params(&decode);
        assert!(params.do_remote_prefill && !params.do_remote_decode);
        assert_eq!(params.transfer_id, Some(TransferId(9)));
        assert_eq!(params.remote_engine_id.as_deref(), Some("p@0000000000000007"));
        assert_eq!((params.remote_host.as_deref(), params.remote_port), (Some("::1"), Some(5600)));
    }

    #[tokio::test]
    async fn prefill_is_told_what_it_may_read_and_decode_is_not() {
        let start = |kind| {
            let start = start(kind, TransferMode::Push);
            let holder = start.peer.clone().unwrap();
            let (transfer, ttl) = (TransferId(5), Duration::from_millis(1999));
            LegStart { reuse: Some(Reuse { holder, transfer, tokens: 640, ttl }), ..start }
        };
        let prefill = text(ask("{}").leg(&start(LegKind::Prefill), None, None)).await;
        let read = params(&prefill);
        assert!(read.do_remote_decode && !read.do_remote_prefill);
        assert_eq!((read.transfer_id, read.transfer_mode), (Some(TransferId(9)), Some(TransferMode::Push)));
        let expected = concat!(
            r#""reuse":{"do_remote_prefill":false,"do_remote_decode":true,"#,
            r#""transfer_id":"xfer-00000000000000000000000000000005","remote_engine_id":"p@0000000000000007","#,
            r#""remote_host":"::1","remote_port":5600,"tp_size":1,"remote_num_tokens":640,"remote_ttl_ms":1999}"#
        );
        assert!(prefill.contains(expected), "{prefill}");
        assert!(!text(ask("{}").leg(&start(LegKind::Decode), None, None)).await.contains("reuse"));
    }

    #[tokio::test]
    async fn the_handle_is_sent_as_it_came() {
        let handle = RawJson::parse(r#"{ "remote_block_ids":[[1, 2]],"x":1.50 }"#).unwrap();
        let request = ask("{}").leg(&start(LegKind::Decode, TransferMode::Pull), Some(handle.clone()), None);
        assert_eq!(text(request).await, format!(r#"{{"kv_transfer_params":{}}}"#, handle.as_str()));
    }

    #[test]
    fn only_known_headers_pass_and_the_tenant_is_not_the_clients_to_say() {
        let mut client = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer k"),
            ("x-request-id", "mine"),
            ("x-baton-tenant", "theirs"),
            ("x-data-parallel-rank", "3"),
            ("connection", "x-secret"),
            ("accept-encoding", "gzip"),
            ("x-team", "blue"),
        ] {
            client.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let names = |headers: HeaderMap| headers.keys().map(|k| k.to_string()).collect::<Vec<_>>();
        assert_eq!(names(forwarded_headers(&client, None)), ["authorization"]);
        let team = HeaderName::from_static("x-team");
        assert_eq!(forwarded_headers(&client, Some(&team))[X_BATON_TENANT], "blue");
    }
}
