//! Tensors: bytes with an element type and a shape, contiguous, row by row.
//!
//! A tensor here is what crosses [`CommBackend`](crate::CommBackend), not something to compute with.

#![forbid(unsafe_code)]

use crate::buffer::Side;
use crate::bytes::AlignedBytes;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result};
use crate::segbuf::SegBuf;
use bytemuck::Pod;
use std::fmt;

/// A borrowed tensor to read from.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    format: Format,
    shape: &'a [usize],
    bytes: &'a [u8],
}

/// A borrowed tensor to write to.
pub struct TensorMut<'a> {
    format: Format,
    shape: &'a [usize],
    bytes: &'a mut [u8],
}

/// An owned tensor, 64-byte aligned. Never shares memory with the engine's scratch, which a later call overwrites.
pub struct Tensor {
    format: Format,
    shape: Vec<usize>,
    storage: Storage,
}

enum Storage {
    Heap(AlignedBytes),
    Segment(SegBuf<u8>),
}

/// Type and size of the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) dtype: DType,
    pub(crate) elem_size: usize,
}

impl Format {
    pub(crate) fn new(dtype: DType) -> Result<Format> {
        let elem_size = dtype.size().ok_or_else(|| {
            Error::invalid("opaque elements have no size of their own; use from_slice, which knows their type")
        })?;
        Ok(Format { dtype, elem_size })
    }

    fn of<T: Pod>() -> Result<Format> {
        if size_of::<T>() == 0 {
            return Err(Error::invalid("elements without a size can't form a tensor; use a type of at least one byte"));
        }
        Ok(Format { dtype: DType::of::<T>(), elem_size: size_of::<T>() })
    }
}

/// Elements of a tensor of this shape; `CountTooLarge` when that overflows.
pub(crate) fn elements(shape: &[usize]) -> Result<usize> {
    // A zero anywhere makes it empty, whatever the other dimensions would multiply to.
    if shape.contains(&0) {
        return Ok(0);
    }
    shape.iter().try_fold(1_usize, |product, dim| product.checked_mul(*dim)).ok_or_else(|| {
        Error::new(
            ErrorKind::CountTooLarge,
            format!("a tensor of shape {shape:?} exceeds the address space; split the call"),
        )
    })
}

/// Bytes of a tensor of this format and shape; `CountTooLarge` when that overflows.
pub(crate) fn bytes_of(format: Format, shape: &[usize]) -> Result<usize> {
    let len = elements(shape)?;
    len.checked_mul(format.elem_size).ok_or_else(|| crate::check::too_large(len, format.elem_size, u64::MAX))
}

fn check_len(format: Format, shape: &[usize], have: usize) -> Result<()> {
    let need = bytes_of(format, shape)?;
    if have == need {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a tensor of shape {shape:?} and type {} has {need} bytes, but {have} were given; pass exactly its bytes",
        format.dtype
    )))
}

fn check_strides(shape: &[usize], strides: &[usize]) -> Result<()> {
    if strides.len() != shape.len() {
        return Err(Error::invalid(format!(
            "{} strides for {} dimensions; give one stride for each, in elements",
            strides.len(),
            shape.len()
        )));
    }
    if elements(shape)? == 0 {
        return Ok(());
    }
    let mut expected = 1;
    for (dim, (size, stride)) in shape.iter().zip(strides).enumerate().rev() {
        // The stride of a dimension of one is never used.
        if *size != 1 && *stride != expected {
            return Err(Error::invalid(format!(
                "the stride of dimension {dim} is {stride}, but a contiguous tensor of shape {shape:?} has {expected}; \
                 make it contiguous first"
            )));
        }
        expected *= size;
    }
    Ok(())
}

impl<'a> TensorRef<'a> {
    /// A tensor over `bytes`, in any alignment. `InvalidArgument` when their number does not fit the shape, and for
    /// [`DType::Opaque`].
    pub fn new(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> Result<TensorRef<'a>> {
        let format = Format::new(dtype)?;
        check_len(format, shape, bytes.len())?;
        Ok(TensorRef { format, shape, bytes })
    }

    /// A tensor over a slice. `InvalidArgument` when its length does not fit the shape.
    ///
    /// ```
    /// use rankwise_core::{DType, TensorRef};
    ///
    /// let tensor = TensorRef::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
    /// assert_eq!((tensor.dtype(), tensor.shape()), (DType::F32, &[2, 3][..]));
    /// assert!(TensorRef::from_slice(&[1_u8; 5], &[2, 3]).is_err());
    /// # Ok::<(), rankwise_core::Error>(())
    /// ```
    pub fn from_slice<T: Pod>(slice: &'a [T], shape: &'a [usize]) -> Result<TensorRef<'a>> {
        let format = Format::of::<T>()?;
        let bytes = bytemuck::cast_slice(slice);
        check_len(format, shape, bytes.len())?;
        Ok(TensorRef { format, shape, bytes })
    }

    /// [`TensorRef::new`] with strides in elements, refused (`InvalidArgument`) unless they say contiguous.
    pub fn with_strides(dtype: DType, shape: &'a [usize], strides: &[usize], bytes: &'a [u8]) -> Result<TensorRef<'a>> {
        check_strides(shape, strides)?;
        TensorRef::new(dtype, shape, bytes)
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.format.dtype
    }

    /// Sizes of the dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The elements' bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / self.format.elem_size
    }

    pub(crate) fn side(&self) -> Side {
        Side { len: self.len(), ..Side::of_slice(self.bytes) }
    }
}

impl<'a> TensorMut<'a> {
    /// A tensor over `bytes`, in any alignment. `InvalidArgument` when their number does not fit the shape, and for
    /// [`DType::Opaque`].
    pub fn new(dtype: DType, shape: &'a [usize], bytes: &'a mut [u8]) -> Result<TensorMut<'a>> {
        let format = Format::new(dtype)?;
        check_len(format, shape, bytes.len())?;
        Ok(TensorMut { format, shape, bytes })
    }

    /// A tensor over a slice. `InvalidArgument` when its length does not fit the shape.
    pub fn from_slice<T: Pod>(slice: &'a mut [T], shape: &'a [usize]) -> Result<TensorMut<'a>> {
        let format = Format::of::<T>()?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(slice);
        check_len(format, shape, bytes.len())?;
        Ok(TensorMut { format, shape, bytes })
    }

    /// [`TensorMut::new`] with strides in elements, refused (`InvalidArgument`) unless they say contiguous.
    pub fn with_strides(
        dtype: DType,
        shape: &'a [usize],
        strides: &[usize],
        bytes: &'a mut [u8],
    ) -> Result<TensorMut<'a>> {
        check_strides(shape, strides)?;
        TensorMut::new(dtype, shape, bytes)
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.format.dtype
    }

    /// Sizes of the dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The elements' bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The elements' bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn side(&mut self) -> Side {
        let len = self.bytes.len() / self.format.elem_size;
        Side { len, ..Side::of_slice_mut(self.bytes) }
    }
}

impl Tensor {
    /// A tensor of zeros. `CountTooLarge`, `NoMemory`; `InvalidArgument` for [`DType::Opaque`].
    pub fn zeroed(dtype: DType, shape: &[usize]) -> Result<Tensor> {
        Tensor::with_format(Format::new(dtype)?, shape.to_vec())
    }

    /// A copy of a slice.
    pub fn from_slice<T: Pod>(slice: &[T], shape: &[usize]) -> Result<Tensor> {
        let source = TensorRef::from_slice(slice, shape)?;
        let mut tensor = Tensor::with_format(source.format, shape.to_vec())?;
        tensor.bytes_mut().copy_from_slice(source.bytes);
        Ok(tensor)
    }

    pub(crate) fn with_format(format: Format, shape: Vec<usize>) -> Result<Tensor> {
        let storage = Storage::Heap(AlignedBytes::zeroed(bytes_of(format, &shape)?)?);
        Ok(Tensor { format, shape, storage })
    }

    /// `segment` has exactly the bytes of this shape.
    pub(crate) fn in_segment(format: Format, shape: Vec<usize>, segment: SegBuf<u8>) -> Tensor {
        Tensor { format, shape, storage: Storage::Segment(segment) }
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.format.dtype
    }

    /// Sizes of the dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements' bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Heap(bytes) => bytes.as_slice(),
            Storage::Segment(segment) => segment,
        }
    }

    /// The elements' bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.storage {
            Storage::Heap(bytes) => bytes.as_mut_slice(),
            Storage::Segment(segment) => segment,
        }
    }

    /// The elements; `InvalidArgument` when they are not of type `T`.
    pub fn as_slice<T: Pod>(&self) -> Result<&[T]> {
        self.check_type::<T>()?;
        bytemuck::try_cast_slice(self.bytes()).map_err(|error| cast_failed::<T>(self.format, error))
    }

    /// The elements; `InvalidArgument` when they are not of type `T`.
    pub fn as_mut_slice<T: Pod>(&mut self) -> Result<&mut [T]> {
        self.check_type::<T>()?;
        let format = self.format;
        bytemuck::try_cast_slice_mut(self.bytes_mut()).map_err(|error| cast_failed::<T>(format, error))
    }

    /// A copy of the elements; `InvalidArgument` when they are not of type `T`.
    pub fn into_vec<T: Pod>(self) -> Result<Vec<T>> {
        Ok(self.as_slice()?.to_vec())
    }

    /// The same elements in another shape; `InvalidArgument` when it has another number of them.
    pub fn reshaped(self, shape: &[usize]) -> Result<Tensor> {
        check_len(self.format, shape, self.bytes().len())?;
        Ok(Tensor { shape: shape.to_vec(), ..self })
    }

    /// A borrowed form to read from.
    #[allow(clippy::should_implement_trait)]
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef { format: self.format, shape: &self.shape, bytes: self.bytes() }
    }

    /// A borrowed form to write to.
    #[allow(clippy::should_implement_trait)]
    pub fn as_mut(&mut self) -> TensorMut<'_> {
        let bytes = match &mut self.storage {
            Storage::Heap(bytes) => bytes.as_mut_slice(),
            Storage::Segment(segment) => segment,
        };
        TensorMut { format: self.format, shape: &self.shape, bytes }
    }

    fn check_type<T: Pod>(&self) -> Result<()> {
        if self.format == (Format { dtype: DType::of::<T>(), elem_size: size_of::<T>() }) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the tensor's elements are {} ({} bytes), not {}; ask for its own type",
            self.format.dtype,
            self.format.elem_size,
            std::any::type_name::<T>()
        )))
    }
}

#[cold]
fn cast_failed<T>(format: Format, error: bytemuck::PodCastError) -> Error {
    Error::invalid(format!("{} elements can't be seen as {}: {error}", format.dtype, std::any::type_name::<T>()))
}

fn describe(f: &mut fmt::Formatter<'_>, name: &str, format: Format, shape: &[usize]) -> fmt::Result {
    write!(f, "{name}({} {shape:?})", format.dtype)
}

impl fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "TensorRef", self.format, self.shape)
    }
}

impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "TensorMut", self.format, self.shape)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(f, "Tensor", self.format, &self.shape)
    }
}
