//! A layer's matrices, ready for the kernels.

use crate::kernels::activations::CpuPrecision;
use crate::kernels::arena::Arena;
use crate::kernels::packed::{PANEL, PackedMatrix};
use crate::weights::Tensor;

/// One or more weight matrices over the same inputs; their outputs follow one another.
#[derive(Debug)]
pub struct Linear {
    /// Each with the output it starts at.
    parts: Vec<(usize, PackedMatrix)>,
    /// Added to the outputs. Empty without.
    bias: Vec<f32>,
    outputs: usize,
    panels: usize,
}

impl Linear {
    /// Packs neighbours of one element type together, others apart. `bias` has one value an output, or none.
    ///
    /// # Panics
    /// If there is no tensor, or their widths differ.
    pub fn new(tensors: &[Tensor<'_>], bias: Vec<f32>, precision: CpuPrecision, arena: &mut Arena) -> Self {
        let mut parts = Vec::new();
        let mut outputs = 0;
        for same in tensors.chunk_by(|a, b| a.dtype == b.dtype && a.rows().is_multiple_of(PANEL)) {
            let matrix = match precision {
                CpuPrecision::Exact => PackedMatrix::pack(same, arena),
                CpuPrecision::Int8 => PackedMatrix::pack_int8(same, arena),
            };
            let start = outputs;
            outputs += matrix.outputs;
            parts.push((start, matrix));
        }
        assert!(bias.is_empty() || bias.len() == outputs, "one bias an output");
        let panels = parts.iter().map(|(_, matrix)| matrix.panels()).sum();
        Self { parts, bias, outputs, panels }
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Panels over all parts.
    pub fn panels(&self) -> usize {
        self.panels
    }

    /// The matrix that panel `panel` is in, which of its panels it is, and the outputs it gives.
    ///
    /// # Panics
    /// If there is no such panel.
    pub fn panel(&self, mut panel: usize) -> (&PackedMatrix, usize, std::ops::Range<usize>) {
        for (start, matrix) in &self.parts {
            if panel < matrix.panels() {
                let first = start + panel * PANEL;
                return (matrix, panel, first..(first + PANEL).min(start + matrix.outputs));
            }
            panel -= matrix.panels();
        }
        panic!("a panel of the matrix")
    }

    pub fn bias(&self) -> &[f32] {
        &self.bias
    }

    /// Bytes of packed weights: what one pass reads.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|(_, matrix)| matrix.bytes()).sum()
    }
}
