//! The GGUF container, versions 2 and 3, little-endian: metadata and tensors of one memory-mapped file.
//!
//! Everything in the file is untrusted: each length is checked against the bytes that are left, so that garbage is an error,
//! never a panic, and never makes this side allocate more than a small multiple of the file's size.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::dtype::Dtype;

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: usize = 32;
const MAX_ARRAY_DEPTH: usize = 2;
const MAX_DIMS: u32 = 4;

/// Why a file cannot be read as GGUF, or does not hold what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("not a GGUF file: it starts with {0:02x?}")]
    Magic([u8; 4]),
    #[error("GGUF version {0} is not supported (2 and 3 are)")]
    Version(u32),
    #[error("GGUF is cut short or has a wrong length at byte {at}, reading {what}")]
    Truncated { at: usize, what: &'static str },
    #[error("GGUF is malformed: {0}")]
    Malformed(String),
    #[error("GGUF has no metadata key {0}")]
    MissingKey(String),
    #[error("GGUF metadata key {key} is {found}, not {wanted}")]
    WrongType { key: String, found: &'static str, wanted: &'static str },
    #[error("GGUF has no tensor {0}")]
    MissingTensor(String),
    #[error(
        "GGUF tensor {name} has ggml type {ggml_type}, which is not supported (F32, F16, BF16, Q4_0, Q4_1, Q8_0 are)"
    )]
    UnsupportedType { name: String, ggml_type: u32 },
}

/// A metadata value. Integers of all widths are held as 64 bits.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Array(Vec<Value>),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) => "an unsigned integer",
            Self::Signed(_) => "a signed integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a bool",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
        }
    }

    /// An integer of either sign that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(n) => Some(n),
            Self::Signed(n) => u64::try_from(n).ok(),
            _ => None,
        }
    }

    /// A float, or an integer as one.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::Float(x) => Some(x),
            Self::Unsigned(n) => Some(n as f64),
            Self::Signed(n) => Some(n as f64),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(b) => Some(b),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(s) => Some(s),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Self::Array(values) => Some(values),
            _ => None,
        }
    }
}

/// One tensor's place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Outermost dimension first, as safetensors writes it (the file has them the other way round).
    pub shape: Vec<usize>,
    /// ggml's number of the element type; [`Gguf::tensor`] says whether it is supported.
    pub ggml_type: u32,
    /// From the start of the data section.
    offset: usize,
}

/// A tensor: its shape, element type and bytes.
#[derive(Clone, Copy, Debug)]
pub struct GgufTensor<'a> {
    /// Outermost dimension first.
    pub shape: &'a [usize],
    pub dtype: Dtype,
    pub bytes: &'a [u8],
}

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    map: Mmap,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
    data_start: usize,
}

impl Gguf {
    /// Maps the file and reads its metadata and tensor list.
    ///
    /// # Errors
    /// If it cannot be read, is not GGUF 2 or 3, or any length in it does not fit.
    #[allow(unsafe_code)]
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let io = |source| GgufError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is only read. A checkpoint is not written while it is served; whoever truncates it under us gets a
        // bus error, as with every program that maps its weights.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let header = Header::parse(&map)?;
        Ok(Self { metadata: header.metadata, tensors: header.tensors, data_start: header.data_start, map })
    }

    pub fn metadata(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// All metadata, by key.
    pub fn metadata_entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &'static str,
        get: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, GgufError> {
        let value = self.metadata.get(key).ok_or_else(|| GgufError::MissingKey(key.to_owned()))?;
        get(value).ok_or_else(|| GgufError::WrongType { key: key.to_owned(), found: value.kind(), wanted })
    }

    /// A metadata integer that is not negative.
    pub fn get_u64(&self, key: &str) -> Result<u64, GgufError> {
        self.typed(key, "an integer that is not negative", Value::as_u64)
    }

    pub fn get_f64(&self, key: &str) -> Result<f64, GgufError> {
        self.typed(key, "a number", Value::as_f64)
    }

    pub fn get_bool(&self, key: &str) -> Result<bool, GgufError> {
        self.typed(key, "a bool", Value::as_bool)
    }

    pub fn get_str(&self, key: &str) -> Result<&str, GgufError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// An array whose elements are all strings.
    pub fn get_strings(&self, key: &str) -> Result<Vec<&str>, GgufError> {
        self.typed(key, "an array of strings", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// An array whose elements are all integers that are not negative.
    pub fn get_u64s(&self, key: &str) -> Result<Vec<u64>, GgufError> {
        self.typed(key, "an array of integers", |value| value.as_array()?.iter().map(Value::as_u64).collect())
    }

    /// An array whose elements are all numbers.
    pub fn get_f64s(&self, key: &str) -> Result<Vec<f64>, GgufError> {
        self.typed(key, "an array of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    /// Every tensor's name and place, by name.
    pub fn tensor_infos(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, info)| (name.as_str(), info))
    }

    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// If there is none, its element type is not supported, or its bytes lie outside the file.
    pub fn tensor(&self, name: &str) -> Result<GgufTensor<'_>, GgufError> {
        let info = self.tensors.get(name).ok_or_else(|| GgufError::MissingTensor(name.to_owned()))?;
        let dtype = dtype_of(info.ggml_type)
            .ok_or_else(|| GgufError::UnsupportedType { name: name.to_owned(), ggml_type: info.ggml_type })?;
        let malformed = |what: &str| GgufError::Malformed(format!("tensor {name} {what}"));
        let row = info.shape.last().copied().unwrap_or(1);
        let elements = info.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let bytes = elements.filter(|_| row.is_multiple_of(dtype.block_elements()));
        let len = bytes
            .and_then(|n| dtype.bytes_for(n))
            .ok_or_else(|| malformed("has rows that are not whole blocks"))?;
        let start = self.data_start.checked_add(info.offset);
        let bytes = start
            .and_then(|start| Some(start..start.checked_add(len)?))
            .and_then(|range| self.map.get(range))
            .ok_or_else(|| malformed("lies outside the file"))?;
        Ok(GgufTensor { shape: &info.shape, dtype, bytes })
    }

    /// The whole file, for a fingerprint.
    pub fn file_bytes(&self) -> &[u8] {
        &self.map
    }
}

fn dtype_of(ggml_type: u32) -> Option<Dtype> {
    Some(match ggml_type {
        0 => Dtype::F32,
        1 => Dtype::F16,
        2 => Dtype::Q4_0,
        3 => Dtype::Q4_1,
        8 => Dtype::Q8_0,
        30 => Dtype::Bf16,
        _ => return None,
    })
}

struct Header {
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
    data_start: usize,
}

impl Header {
    fn parse(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut reader = Reader { bytes, at: 0 };
        let magic = reader.array::<4>("the magic")?;
        if magic != MAGIC {
            return Err(GgufError::Magic(magic));
        }
        let version = reader.u32("the version")?;
        if !(2..=3).contains(&version) {
            return Err(GgufError::Version(version));
        }
        let tensor_count = reader.u64("the tensor count")?;
        let metadata_count = reader.u64("the metadata count")?;
        let mut metadata = BTreeMap::new();
        // A count that the file cannot hold ends in `Truncated` at the first entry that is not there.
        for _ in 0..metadata_count {
            let key = reader.string("a metadata key")?;
            let value_type = reader.u32("a value type")?;
            let value = reader.value(value_type, 0)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(GgufError::Malformed(format!("metadata key {key} appears twice")));
            }
        }
        let mut tensors = BTreeMap::new();
        for _ in 0..tensor_count {
            let name = reader.string("a tensor name")?;
            let info = reader.tensor_info(&name)?;
            if tensors.insert(name.clone(), info).is_some() {
                return Err(GgufError::Malformed(format!("tensor {name} appears twice")));
            }
        }
        let alignment = match metadata.get("general.alignment").map(Value::as_u64) {
            None => DEFAULT_ALIGNMENT,
            Some(Some(n)) if n.is_power_of_two() && n <= 1 << 20 => n as usize,
            Some(_) => {
                return Err(GgufError::Malformed("general.alignment is not a power of two".to_owned()));
            }
        };
        let data_start = reader.at.next_multiple_of(alignment);
        Ok(Self { metadata, tensors, data_start })
    }
}

/// A cursor that never reads past its bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let truncated = GgufError::Truncated { at: self.at, what };
        let Some(end) = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len)) else {
            return Err(truncated);
        };
        let Some(taken) = self.bytes.get(self.at..end) else { return Err(truncated) };
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn string(&mut self, what: &'static str) -> Result<String, GgufError> {
        let len = self.u64(what)?;
        let bytes = self.take(len, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(GgufError::Malformed(format!("{what} is not UTF-8"))),
        }
    }

    fn value(&mut self, value_type: u32, depth: usize) -> Result<Value, GgufError> {
        const WHAT: &str = "a value";
        Ok(match value_type {
            0 => Value::Unsigned(u64::from(u8::from_le_bytes(self.array(WHAT)?))),
            1 => Value::Signed(i64::from(i8::from_le_bytes(self.array(WHAT)?))),
            2 => Value::Unsigned(u64::from(u16::from_le_bytes(self.array(WHAT)?))),
            3 => Value::Signed(i64::from(i16::from_le_bytes(self.array(WHAT)?))),
            4 => Value::Unsigned(u64::from(self.u32(WHAT)?)),
            5 => Value::Signed(i64::from(i32::from_le_bytes(self.array(WHAT)?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array(WHAT)?))),
            7 => Value::Bool(self.array::<1>(WHAT)?[0] != 0),
            8 => Value::String(self.string("a string value")?),
            9 => self.array_value(depth)?,
            10 => Value::Unsigned(self.u64(WHAT)?),
            11 => Value::Signed(i64::from_le_bytes(self.array(WHAT)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(WHAT)?)),
            other => return Err(GgufError::Malformed(format!("value type {other} is unknown"))),
        })
    }

    fn array_value(&mut self, depth: usize) -> Result<Value, GgufError> {
        if depth >= MAX_ARRAY_DEPTH {
            return Err(GgufError::Malformed(format!("arrays are nested deeper than {MAX_ARRAY_DEPTH}")));
        }
        let element_type = self.u32("an array's element type")?;
        let len = self.u64("an array's length")?;
        let left = self.bytes.len() - self.at;
        // An element has at least one byte: a longer array cannot be in the file, and must not be reserved.
        if usize::try_from(len).map_or(true, |len| len > left) {
            return Err(GgufError::Truncated { at: self.at, what: "an array" });
        }
        (0..len).map(|_| self.value(element_type, depth + 1)).collect::<Result<_, _>>().map(Value::Array)
    }

    fn tensor_info(&mut self, name: &str) -> Result<TensorInfo, GgufError> {
        let dims = self.u32("a tensor's dimension count")?;
        if dims > MAX_DIMS {
            return Err(GgufError::Malformed(format!("tensor {name} has {dims} dimensions")));
        }
        let too_large = || GgufError::Malformed(format!("tensor {name} is larger than the address space"));
        let mut shape = Vec::with_capacity(dims as usize);
        for _ in 0..dims {
            shape.push(usize::try_from(self.u64("a tensor's dimension")?).map_err(|_| too_large())?);
        }
        shape.reverse();
        let ggml_type = self.u32("a tensor's type")?;
        let offset = usize::try_from(self.u64("a tensor's offset")?).map_err(|_| too_large())?;
        Ok(TensorInfo { shape, ggml_type, offset })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn string(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    /// One u32 key, one array of two strings, and one F32 tensor `w` of shape [2, 3] holding 0..6.
    fn small_file() -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend(1u64.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        string(&mut out, "answer");
        out.extend(4u32.to_le_bytes());
        out.extend(42u32.to_le_bytes());
        string(&mut out, "words");
        out.extend(9u32.to_le_bytes());
        out.extend(8u32.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        string(&mut out, "to");
        string(&mut out, "be");
        string(&mut out, "w");
        out.extend(2u32.to_le_bytes());
        out.extend(3u64.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend(0u64.to_le_bytes());
        out.resize(out.len().next_multiple_of(32), 0);
        for i in 0..6 {
            out.extend((i as f32).to_le_bytes());
        }
        out
    }

    fn open(bytes: &[u8]) -> Result<Gguf, GgufError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        Gguf::open(file.path())
    }

    #[test]
    fn a_small_file_reads_back() {
        let gguf = open(&small_file()).unwrap();
        assert_eq!(gguf.get_u64("answer").unwrap(), 42);
        assert_eq!(gguf.get_strings("words").unwrap(), ["to", "be"]);
        let tensor = gguf.tensor("w").unwrap();
        assert_eq!((tensor.shape, tensor.dtype), (&[2, 3][..], Dtype::F32));
        let mut out = [0.0; 6];
        tensor.dtype.widen(tensor.bytes, &mut out);
        assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!(matches!(gguf.get_str("answer"), Err(GgufError::WrongType { .. })));
        assert!(matches!(gguf.get_str("none"), Err(GgufError::MissingKey(_))));
    }

    #[test]
    fn a_file_cut_short_anywhere_is_an_error() {
        let whole = small_file();
        for len in 0..whole.len() {
            assert!(open(&whole[..len]).and_then(|g| g.tensor("w").map(|_| ())).is_err(), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(edits in prop::collection::vec((0usize..200, any::<u8>()), 1..12)) {
            let mut bytes = small_file();
            let len = bytes.len();
            for (at, byte) in edits {
                bytes[at % len] = byte;
            }
            if let Ok(gguf) = open(&bytes) {
                for (name, _) in gguf.tensor_infos() {
                    let _ = gguf.tensor(name);
                }
            }
        }
    }
}
