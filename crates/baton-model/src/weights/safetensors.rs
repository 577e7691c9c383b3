//! The safetensors container: one memory-mapped file, or shards with an index.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::SafeTensors;
use serde::Deserialize;

use super::dtype::Dtype;

/// Why safetensors files cannot be read, or do not hold what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Container { path: PathBuf, source: safetensors::SafeTensorError },
    #[error("{path}: {source}")]
    Index { path: PathBuf, source: serde_json::Error },
    #[error("{index} names {shard:?}, which is not a plain file name")]
    ShardName { index: PathBuf, shard: String },
    #[error("the checkpoint has no tensor {0}")]
    MissingTensor(String),
    #[error("tensor {name} is {dtype:?}, which is not supported (F32, F16 and BF16 are)")]
    UnsupportedType { name: String, dtype: safetensors::Dtype },
    #[error("tensor {0} lies outside its file")]
    OutOfFile(String),
}

/// All tensors of a checkpoint in safetensors format.
#[derive(Debug)]
pub struct Safetensors {
    files: Vec<Mmap>,
    tensors: BTreeMap<String, Place>,
}

#[derive(Debug)]
struct Place {
    file: usize,
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    range: Range<usize>,
}

/// `model.safetensors.index.json`.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

impl Safetensors {
    /// Opens `model.safetensors`, or all shards that `model.safetensors.index.json` names, in `directory`.
    pub fn open_directory(directory: &Path) -> Result<Self, SafetensorsError> {
        let index = directory.join(INDEX);
        let names = if index.is_file() { shard_names(&index)? } else { vec![SINGLE.to_owned()] };
        let mut all = Self { files: Vec::new(), tensors: BTreeMap::new() };
        for name in names {
            all.add_file(&directory.join(name))?;
        }
        Ok(all)
    }

    #[allow(unsafe_code)]
    fn add_file(&mut self, path: &Path) -> Result<(), SafetensorsError> {
        let io = |source| SafetensorsError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        // SAFETY: only read; see `Gguf::open` on files that change while they are served.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let container = |source| SafetensorsError::Container { path: path.to_owned(), source };
        let (header_bytes, metadata) = SafeTensors::read_metadata(&map).map_err(container)?;
        let data_start = 8 + header_bytes;
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let range = data_start.saturating_add(start)..data_start.saturating_add(end);
            let place = Place { file: self.files.len(), dtype: info.dtype, shape: info.shape.clone(), range };
            self.tensors.insert(name, place);
        }
        self.files.push(map);
        Ok(())
    }

    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Shape, element type and bytes of the tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<(&[usize], Dtype, &[u8]), SafetensorsError> {
        let place = self.tensors.get(name).ok_or_else(|| SafetensorsError::MissingTensor(name.to_owned()))?;
        let dtype = match place.dtype {
            safetensors::Dtype::F32 => Dtype::F32,
            safetensors::Dtype::F16 => Dtype::F16,
            safetensors::Dtype::BF16 => Dtype::Bf16,
            dtype => return Err(SafetensorsError::UnsupportedType { name: name.to_owned(), dtype }),
        };
        let elements = place.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let bytes = self.files[place.file]
            .get(place.range.clone())
            .filter(|bytes| elements.and_then(|n| dtype.bytes_for(n)) == Some(bytes.len()))
            .ok_or_else(|| SafetensorsError::OutOfFile(name.to_owned()))?;
        Ok((&place.shape, dtype, bytes))
    }
}

/// The distinct shards of an index, in order. A shard is a name inside the checkpoint's directory, never a path out of it.
fn shard_names(index: &Path) -> Result<Vec<String>, SafetensorsError> {
    let text = std::fs::read_to_string(index)
        .map_err(|source| SafetensorsError::Io { path: index.to_owned(), source })?;
    let parsed: Index = serde_json::from_str(&text)
        .map_err(|source| SafetensorsError::Index { path: index.to_owned(), source })?;
    let mut names: Vec<String> = parsed.weight_map.into_values().collect();
    names.sort();
    names.dedup();
    match names.iter().find(|name| Path::new(name).file_name().is_none_or(|f| f != name.as_str())) {
        Some(shard) => Err(SafetensorsError::ShardName { index: index.to_owned(), shard: shard.clone() }),
        None => Ok(names),
    }
}
