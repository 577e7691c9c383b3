//! Waiting until processes answer.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep, timeout};

use super::plan::Process;
use super::screen::Screen;
use crate::http::Server;

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Longest wait for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Asks each process for its health until all have said that it is good, and says which one it waits for.
///
/// # Errors
/// If `limit` passes first.
pub async fn all_healthy(processes: &[Process], limit: Duration, screen: &Screen) -> Result<()> {
    let deadline = Instant::now() + limit;
    let mut waiting = Vec::new();
    for process in processes {
        waiting.push((process.name.as_str(), Server::at(&process.url())?));
    }
    while !waiting.is_empty() {
        screen.waiting_for(format!("waiting for {}", names(&waiting)));
        let mut still = Vec::new();
        for (name, server) in waiting {
            if !is_healthy(&server).await {
                still.push((name, server));
            }
        }
        waiting = still;
        if !waiting.is_empty() && Instant::now() >= deadline {
            bail!("{} did not become healthy within {limit:?}", names(&waiting));
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

async fn is_healthy(server: &Server) -> bool {
    matches!(timeout(ANSWER_TIMEOUT, server.get("/health")).await, Ok(Ok(answer)) if answer.status().is_success())
}

fn names(waiting: &[(&str, Server)]) -> String {
    waiting.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}
