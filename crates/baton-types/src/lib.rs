//! The words that every Baton crate shares: ids, time, tokens, block hashes, the KV layout and `kv_transfer_params`.
//!
//! Nothing here does I/O, reads a clock or holds a rule about who may touch which block; that is `baton-proto`.

pub mod block;
pub mod ids;
pub mod info;
pub mod layout;
pub mod memory;
pub mod mutant;
pub mod params;
pub mod role;
pub mod sampling;
pub mod time;
pub mod tokens;

pub use block::{BlockChain, BlockHash, BlockId, CacheSalt, UnitId};
pub use ids::{EngineId, EngineName, Incarnation, SeqId, TransferId};
pub use info::{EngineInfo, EngineLoad, SideChannel};
pub use layout::{KvDtype, KvLayout, KvOrder, PoolShape};
pub use memory::{HeapRegion, MemoryRegion};
pub use mutant::{Mutant, Mutation};
pub use params::{KvTransferParams, TransferMode};
pub use role::{EngineRole, LegKind};
pub use sampling::SamplingParams;
pub use time::{Millis, Time};
pub use tokens::TokenId;
