//! The HTTP listener: connections, limited in number and in how long they may keep a place without a request.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::app::App;
use crate::http;

/// How long the head of a request may take, from the connection's beginning or the answer before. Routers keep idle connections
/// for less, so that none of them is closed under a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Of a request's head. A body has its own limit.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// How long to wait when the operating system gives no socket.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long answers may take to leave once the engine is done.
const FAREWELL: Duration = Duration::from_secs(1);

/// The HTTP side, from the first moment to the last. Dropping it ends every connection.
#[derive(Debug)]
pub(crate) struct HttpFront {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl HttpFront {
    pub fn start(listener: TcpListener, app: Arc<App>, max_connections: usize) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(serve(listener, http::router(app), max_connections, stopped));
        Self { stop, task }
    }

    /// Lets answers that are complete leave.
    pub async fn finish(mut self) {
        // The task still listens for it.
        let _ = self.stop.send(true);
        let _ = tokio::time::timeout(FAREWELL, &mut self.task).await;
    }
}

impl Drop for HttpFront {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    mut stopped: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(max_connections));
    let shutdown = GracefulShutdown::new();
    // Ends the connections with this task.
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let next = async {
            // The semaphore is never closed. Without a place, connections wait in the operating system's queue.
            let place = places.clone().acquire_owned().await.ok()?;
            Some((accept(&listener).await?, place))
        };
        let next = tokio::select! {
            next = next => next,
            _ = stopped.wait_for(|stop| *stop) => break,
        };
        let Some((stream, place)) = next else { continue };
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
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
