//! What is left of a run: its files, and what the terminal shows.

mod digest;
mod table;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use baton_workload::result::{REQUESTS_FILE, RESULT_FILE, RequestRecord, RunResult};

pub(crate) use table::{comparison_table, point_table};

/// A run that is over.
#[derive(Debug)]
pub struct Outcome {
    pub result: RunResult,
    /// Where `result.json` and the requests are.
    pub dir: PathBuf,
}

/// A directory that is being filled.
#[derive(Debug)]
pub(crate) struct ResultDir {
    path: PathBuf,
    requests: BufWriter<File>,
}

impl ResultDir {
    /// # Errors
    /// If it has a result already, or cannot be written to.
    pub fn create(path: &Path) -> Result<Self> {
        if path.join(RESULT_FILE).exists() {
            bail!("{} has a result already; name another directory with --out", path.display());
        }
        let cannot = || format!("cannot write to {}", path.display());
        std::fs::create_dir_all(path).with_context(cannot)?;
        let requests = File::create(path.join(REQUESTS_FILE)).with_context(cannot)?;
        Ok(Self { path: path.to_owned(), requests: BufWriter::new(requests) })
    }

    pub fn append(&mut self, records: &[RequestRecord]) -> Result<()> {
        for record in records {
            serde_json::to_writer(&mut self.requests, record)?;
            self.requests.write_all(b"\n")?;
        }
        self.requests.flush().with_context(|| format!("cannot write to {}", self.path.display()))
    }

    pub fn finish(self, mut result: RunResult) -> Result<Outcome> {
        result.requests_file = Some(REQUESTS_FILE.to_owned());
        let path = self.path.join(RESULT_FILE);
        let write = || -> std::io::Result<()> {
            let mut out = BufWriter::new(File::create(&path)?);
            result.write(&mut out)?;
            out.flush()
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Outcome { result, dir: self.path })
    }
}
