//! A model's files: fetched if need be, and the tokenizer and chat template in them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_model::chat_template::{ChatTemplate, ChatTemplateError, TemplateSource};
use baton_model::fetch::{FetchProgress, ModelFiles, ModelSource};
use baton_model::tokenizer::{GgufVocabulary, Tokenizer};
use baton_model::weights::gguf::Gguf;

use crate::error::ServerError;
use crate::text::Text;

/// How often a download says how far it is.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Makes the model that `source` names available on this machine; see [`ModelSource::parse`].
///
/// # Errors
/// If there is no such model, or it cannot be downloaded.
pub(crate) fn fetch(source: &str) -> Result<ModelFiles, ServerError> {
    let parsed = ModelSource::parse(source).map_err(model_error)?;
    let mut reported: Option<Instant> = None;
    parsed
        .fetch(&mut |progress| {
            if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
                reported = Some(Instant::now());
                report(source, &progress);
            }
        })
        .map_err(model_error)
}

fn report(source: &str, progress: &FetchProgress<'_>) {
    match progress {
        FetchProgress::Waiting => tracing::info!(source, "another process is fetching the model"),
        FetchProgress::Downloading { file, done_bytes, total_bytes } => {
            tracing::info!(source, file, done_bytes, total_bytes, "downloading");
        }
        FetchProgress::Unpacking => tracing::info!(source, "unpacking"),
        FetchProgress::Verifying => tracing::info!(source, "verifying"),
    }
}

/// The text of a model. A model without a chat template has completions only.
///
/// # Errors
/// If its tokenizer or template is not there or not understood.
pub(crate) fn text(files: &ModelFiles) -> Result<Text, ServerError> {
    let (tokenizer, source) = match files {
        ModelFiles::Directory(path) => {
            (Tokenizer::from_directory(path), TemplateSource::from_directory(path))
        }
        ModelFiles::Gguf(path) => {
            let gguf = Gguf::open(path).map_err(model_error)?;
            let vocabulary = GgufVocabulary::read(&gguf).map_err(model_error)?;
            (Tokenizer::from_gguf(&vocabulary), TemplateSource::from_gguf(&gguf))
        }
    };
    let template = match source.and_then(ChatTemplate::compile) {
        Ok(template) => Some(Box::new(template)),
        Err(ChatTemplateError::Absent) => None,
        Err(error) => return Err(model_error(error)),
    };
    Ok(Text::Model { tokenizer: Arc::new(tokenizer.map_err(model_error)?), template })
}

fn model_error(error: impl std::fmt::Display) -> ServerError {
    ServerError::Model(error.to_string())
}
