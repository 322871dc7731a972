//! Typed access to metadata: a missing key is `None`, a value of another type is an error that names the key.
//!
//! Stage: gguf. Deviation from llama.cpp, which wants the exact type: every integer type that holds the value will do,
//! since converters differ in the type they write.

use super::{Array, Gguf, StrArray, Value};
use crate::error::{Error, Result};

impl Gguf {
    /// The integer `key` as `u32`.
    ///
    /// # Errors
    /// The value is not an integer or does not fit.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.get(key, "an integer from 0 to 2^32 - 1", |v| v.integer()?.try_into().ok())
    }

    /// The integer `key` as `u64`.
    ///
    /// # Errors
    /// The value is not an integer or does not fit.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.get(key, "an integer from 0 to 2^64 - 1", |v| v.integer()?.try_into().ok())
    }

    /// The number `key` of type f32 or f64.
    ///
    /// # Errors
    /// The value has another type.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.get(key, "f32", |v| match *v {
            Value::F32(x) => Some(x),
            Value::F64(x) => Some(x as f32),
            _ => None,
        })
    }

    /// The truth value `key`.
    ///
    /// # Errors
    /// The value has another type.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, "bool", |v| match *v {
            Value::Bool(x) => Some(x),
            _ => None,
        })
    }

    /// The text `key`.
    ///
    /// # Errors
    /// The value has another type.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.get(key, "str", |v| match v {
            Value::Str(x) => Some(x.as_str()),
            _ => None,
        })
    }

    /// The array of strings `key`.
    ///
    /// # Errors
    /// The value has another type.
    pub fn str_array(&self, key: &str) -> Result<Option<&StrArray>> {
        self.get(key, "arr[str]", |v| match v {
            Value::Array(Array::Str(a)) => Some(a),
            _ => None,
        })
    }

    /// The array of f32 or f64 numbers `key`.
    ///
    /// # Errors
    /// The value has another type.
    pub fn f32_array(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.get(key, "arr[f32]", |v| match v {
            Value::Array(Array::F32(a)) => Some(a.clone()),
            Value::Array(Array::F64(a)) => Some(a.iter().map(|&x| x as f32).collect()),
            _ => None,
        })
    }

    /// The array of integers `key` as `i32`.
    ///
    /// # Errors
    /// The value has another type or an element does not fit.
    pub fn i32_array(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.get(key, "an array of integers from -2^31 to 2^31 - 1", |v| match v {
            Value::Array(a) => a.integers()?.map(|x| x.try_into().ok()).collect(),
            _ => None,
        })
    }

    /// The array of truth values `key`.
    ///
    /// # Errors
    /// The value has another type.
    pub fn bool_array(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.get(key, "arr[bool]", |v| match v {
            Value::Array(Array::Bool(a)) => Some(a.clone()),
            _ => None,
        })
    }

    /// Like [`Gguf::u32`] for a key that the model must have.
    ///
    /// # Errors
    /// The key is missing, or as for `u32`.
    pub fn require_u32(&self, key: &str) -> Result<u32> {
        self.require(key, self.u32(key)?)
    }

    /// Like [`Gguf::f32`] for a key that the model must have.
    ///
    /// # Errors
    /// The key is missing, or as for `f32`.
    pub fn require_f32(&self, key: &str) -> Result<f32> {
        self.require(key, self.f32(key)?)
    }

    /// Like [`Gguf::str`] for a key that the model must have.
    ///
    /// # Errors
    /// The key is missing, or as for `str`.
    pub fn require_str(&self, key: &str) -> Result<&str> {
        self.require(key, self.str(key)?)
    }

    /// Like [`Gguf::str_array`] for a key that the model must have.
    ///
    /// # Errors
    /// The key is missing, or as for `str_array`.
    pub fn require_str_array(&self, key: &str) -> Result<&StrArray> {
        self.require(key, self.str_array(key)?)
    }

    fn require<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| Error::gguf(self.path(), format!("key '{key}' is missing")))
    }

    fn get<'a, T>(&'a self, key: &str, want: &str, convert: impl FnOnce(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        match convert(&entry.value) {
            Some(value) => Ok(Some(value)),
            None => Err(Error::Gguf {
                path: self.path().to_path_buf(),
                offset: entry.offset,
                what: format!("key '{key}' is {}, expected {want}", entry.value),
            }),
        }
    }
}
