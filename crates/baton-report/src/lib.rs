//! Results of `baton bench`, to look at: one HTML page that stands alone, Markdown, or CSV.
//!
//! [`Input::read`] reads a result, [`report`] makes of several what there is to say, and [`page`], [`markdown`] and
//! [`Table::csv`](table::Table::csv) write it. A page holds what is drawn, not what was measured: however many requests there
//! were, it has some hundred points of each distribution, and the few requests that are shown one by one.

mod answers;
pub mod chart;
mod compose;
mod distribution;
mod figures;
mod input;
mod markdown;
mod markup;
mod page;
pub mod report;
mod study;
pub mod table;
pub mod timeline;
mod trace;

pub use compose::report;
pub use input::{Input, InputError};
pub use markdown::markdown;
pub use page::page;
pub use trace::{Trace, TraceError};
