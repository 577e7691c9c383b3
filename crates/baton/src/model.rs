//! The model's files: found, or fetched while the user sees how far it is.

use std::io::Write;

use anyhow::{Context, Result};
use baton_model::fetch::{FetchProgress, ModelFiles, ModelSource};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::args::EngineArgs;

/// The model that needs no files.
pub const EMULATED: &str = "emulated";

/// What a user's words for a model stand for.
#[derive(Debug, PartialEq, Eq)]
pub enum Model {
    Emulated,
    Files {
        /// How the API calls it, unless the user says otherwise; never a path of this machine.
        name: String,
        files: ModelFiles,
    },
}

impl Model {
    /// The engine's model, and on this disk whatever else its settings name. Downloads what is not here, and blocks
    /// meanwhile, perhaps for minutes.
    ///
    /// # Errors
    /// If there is no such model, or it cannot be had.
    pub fn find_all(engine: &EngineArgs) -> Result<Self> {
        if let Some(tokenizer) = &engine.emulated_tokenizer {
            Self::find(tokenizer)?;
        }
        Self::find(&engine.model)
    }

    fn find(text: &str) -> Result<Self> {
        if text == EMULATED {
            return Ok(Self::Emulated);
        }
        let source = ModelSource::parse(text)?;
        let mut bar = FetchBar::new(text);
        let files = source.fetch(&mut |progress| bar.show(&progress));
        bar.end();
        Ok(Self::Files { name: name(&source), files: files.with_context(|| format!("model {text}"))? })
    }
}

fn name(source: &ModelSource) -> String {
    match source {
        ModelSource::SmolLm2 | ModelSource::Hub(_) => source.to_string(),
        ModelSource::Gguf(path) => stem(path.file_stem()),
        ModelSource::Directory(path) => stem(path.canonicalize().ok().as_deref().unwrap_or(path).file_name()),
    }
}

fn stem(name: Option<&std::ffi::OsStr>) -> String {
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A bar in a terminal, else a line for each thing that is done.
#[derive(Debug)]
struct FetchBar {
    model: String,
    bar: ProgressBar,
    /// What was said last.
    said: String,
}

const BAR: &str = "{msg} {wide_bar:.cyan/dim} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

impl FetchBar {
    fn new(model: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(BAR) {
            bar.set_style(style);
        }
        Self { model: model.to_owned(), bar, said: String::new() }
    }

    fn show(&mut self, progress: &FetchProgress<'_>) {
        let model = &self.model;
        match progress {
            FetchProgress::Waiting => self.say(format!("{model}: another process is fetching it")),
            FetchProgress::Downloading { file, done_bytes, total_bytes } => {
                self.bar.set_length(*total_bytes);
                self.bar.set_position(*done_bytes);
                self.say(format!("{model}: downloading {file}"));
            }
            FetchProgress::Unpacking => self.say(format!("{model}: unpacking")),
            FetchProgress::Verifying => self.say(format!("{model}: verifying")),
        }
    }

    fn say(&mut self, text: String) {
        if text == self.said {
            return;
        }
        if self.bar.is_hidden() {
            // Nobody is left to be told that standard error is closed.
            let _ = writeln!(std::io::stderr(), "{text}");
        } else {
            self.bar.set_message(text.clone());
        }
        self.said = text;
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_nothing_of_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let gguf = dir.path().join("Tiny-1B.Q4.gguf");
        std::fs::write(&gguf, "").unwrap();
        let found = Model::find(gguf.to_str().unwrap()).unwrap();
        assert_eq!(found, Model::Files { name: "Tiny-1B.Q4".to_owned(), files: ModelFiles::Gguf(gguf) });
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        let Model::Files { name, .. } = Model::find(dir.path().to_str().unwrap()).unwrap() else {
            unreachable!()
        };
        assert_eq!(name, dir.path().file_name().unwrap().to_str().unwrap());
        assert_eq!(Model::find("emulated").unwrap(), Model::Emulated);
        assert!(Model::find("nothing-of-the-kind").is_err());
    }
}
