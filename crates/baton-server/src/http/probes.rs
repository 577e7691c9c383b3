//! What routers, load balancers and operators ask: health, version, models, metrics, and what kind of engine
//! this is.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use baton_openai::ApiError;
use baton_openai::models::{ModelCard, ModelList};
use baton_types::EngineInfo;
use baton_types::info::EngineLoad;

use super::{json_response, respond};
use crate::app::{App, Serving, draining};
use crate::inbox::Snapshot;
use crate::metrics::{Page, write_stats};

/// 200 while requests are taken, 503 while the model loads or the server drains.
pub(super) async fn health(State(app): State<Arc<App>>) -> Response {
    respond(app.open().map(|_| Response::new(Body::empty())))
}

pub(super) async fn version() -> Response {
    json_response(&serde_json::json!({"version": env!("CARGO_PKG_VERSION")}))
}

pub(super) async fn models(State(app): State<Arc<App>>) -> Response {
    respond(app.serving().map(|serving| {
        let info = &serving.info;
        json_response(&ModelList::new(vec![ModelCard::new(&info.model, app.started, info.max_model_len)]))
    }))
}

pub(super) async fn info(State(app): State<Arc<App>>) -> Response {
    respond(engine_info(&app).await.map(|info| json_response(&info)))
}

async fn engine_info(app: &App) -> Result<EngineInfo, ApiError> {
    let serving = app.serving()?;
    let stats = snapshot(serving).await?.stats;
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let load = EngineLoad {
        running: count(stats.running),
        waiting: count(stats.waiting + stats.receiving),
        kv_blocks_total: count(stats.blocks.total()),
        kv_blocks_free: count(stats.blocks.free),
    };
    Ok(EngineInfo { load, ..serving.info.clone() })
}

/// The HTTP side's numbers always; the engine's once there is one.
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut page = Page::default();
    app.metrics.write(&mut page);
    if let Ok(serving) = app.serving() {
        serving.steps.write(&mut page);
        if let Ok(snapshot) = snapshot(serving).await {
            write_stats(&mut page, &snapshot.stats, &serving.info.model, serving.kv_sizes());
        }
    }
    let mut response = Response::new(Body::from(page.into_text()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(Page::CONTENT_TYPE));
    response
}

async fn snapshot(serving: &Serving) -> Result<Snapshot, ApiError> {
    serving.inbox.snapshot().await.ok_or_else(draining)
}
