//! The HTTP side, from the first moment to the last.

use std::sync::Arc;
use std::time::Duration;

use baton_http::Limits;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::http;

/// How long the head of a request may take, from the connection's beginning or the answer before. Routers keep idle connections
/// for less, so that none of them is closed under a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take no byte of its answer. As long as a router gives its own.
const STALL: Duration = Duration::from_secs(60);
/// How long answers may take to leave once the engine is done.
const FAREWELL: Duration = Duration::from_secs(1);

/// Dropping it ends every connection.
#[derive(Debug)]
pub(crate) struct HttpFront {
    stop: oneshot::Sender<()>,
    task: Task,
}

/// Ends with whoever holds it.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl HttpFront {
    pub fn start(listener: TcpListener, app: Arc<App>, max_connections: usize) -> Self {
        let limits = Limits { connections: max_connections, head: HEAD_TIMEOUT, stall: STALL };
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            // Dropped with the task.
            let _ = stopped.await;
        };
        Self {
            stop,
            task: Task(tokio::spawn(baton_http::serve(listener, http::router(app), limits, stopped))),
        }
    }

    /// Lets answers that are complete leave.
    pub async fn finish(self) {
        let Self { stop, mut task } = self;
        // The task still listens for it.
        let _ = stop.send(());
        let _ = tokio::time::timeout(FAREWELL, &mut task.0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
