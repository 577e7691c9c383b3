//! What stands where, once everything runs.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use baton_openai::models::ModelList;

use super::plan::Process;
use crate::http::{self, Server};

/// One row of the table.
#[derive(Debug)]
pub struct Place<'a> {
    pub process: &'a Process,
    pub pid: u32,
    /// None where its lines go to the terminal.
    pub log: Option<PathBuf>,
}

#[derive(Debug)]
pub struct Banner<'a> {
    places: Vec<Place<'a>>,
    /// Base address of the router.
    url: String,
    model: String,
}

impl<'a> Banner<'a> {
    /// # Errors
    /// If the router does not say which model it serves.
    pub async fn of(places: Vec<Place<'a>>, url: &str) -> Result<Self> {
        let answer = Server::at(url)?.get("/v1/models").await?;
        let models: ModelList = http::read_json(answer).await.context("the router's list of models")?;
        let model = models.data.into_iter().next().context("the router's list of models is empty")?.id;
        Ok(Self { places, url: url.to_owned(), model })
    }

    fn rows(&self) -> Vec<[String; 6]> {
        let head = ["NAME", "ROLE", "URL", "PID", "THREADS", "LOG"].map(str::to_owned);
        let row = |place: &Place<'_>| {
            let Place { process, pid, log } = place;
            [
                process.name.clone(),
                process.role.to_owned(),
                process.url(),
                pid.to_string(),
                process.threads.map_or("-".to_owned(), |threads| threads.to_string()),
                log.as_ref().map_or_else(|| "this terminal".to_owned(), |path| path.display().to_string()),
            ]
        };
        std::iter::once(head).chain(self.places.iter().map(row)).collect()
    }
}

impl fmt::Display for Banner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 6] = std::array::from_fn(width);
        writeln!(f)?;
        for row in &rows {
            let cells: Vec<String> =
                row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            writeln!(f, "  {}", cells.join("  ").trim_end())?;
        }
        let Self { url, model, .. } = self;
        let request = serde_json::json!({
            "model": model,
            "messages": [{"role": "user", "content": "What is a relay race?"}],
            "max_tokens": 64,
        });
        writeln!(f, "\nTry it:")?;
        writeln!(f, "  baton chat --url {url}")?;
        writeln!(
            f,
            "  curl {url}/v1/chat/completions -H 'content-type: application/json' \\\n    -d '{request}'"
        )?;
        writeln!(f, "\nCtrl-C stops everything.")
    }
}
