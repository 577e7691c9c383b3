//! Connections from their first byte to their last.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::patience::Patient;

/// Of a request's head. Bodies are limited by whoever reads them.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// How long to wait when the operating system gives no socket.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one listener's clients may keep, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// More wait in the operating system's queue.
    pub connections: usize,
    /// How long the head of a request may take, from the connection's beginning or the answer before: an idle connection is closed
    /// after it.
    pub head: Duration,
    /// How long a client may take no byte of an answer.
    pub stall: Duration,
}

/// Serves HTTP/1.1 until `stop` is ready; then takes no more connections, and returns when the answers under way have left. Dropping
/// the future ends every connection.
pub async fn serve(listener: TcpListener, routes: Router, limits: Limits, stop: impl Future<Output = ()>) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let shutdown = GracefulShutdown::new();
    // Ends the connections with this future.
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        while connections.try_join_next().is_some() {}
        let next = async {
            // The semaphore is never closed.
            let place = places.clone().acquire_owned().await.ok()?;
            Some((accept(&listener).await?, place))
        };
        let next = tokio::select! {
            next = next => next,
            () = &mut stop => break,
        };
        let Some((stream, place)) = next else { continue };
        let service = TowerToHyperService::new(routes.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(Patient::new(stream, limits.stall)), service);
        let connection = shutdown.watch(connection);
        connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP connection broke");
            }
            drop(place);
        });
    }
    drop(listener);
    shutdown.shutdown().await;
}

async fn accept(listener: &TcpListener) -> Option<TcpStream> {
    match listener.accept().await {
        Ok((stream, _)) => {
            // Without it, a streamed token may wait for the acknowledgement of the one before.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "TCP_NODELAY");
            }
            Some(stream)
        }
        Err(error) => {
            tracing::warn!(%error, "HTTP cannot accept");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}
