//! A number for everything a model file says about itself: metadata, with what was set later, and the table of tensors.

use super::write::put_value;
use super::Gguf;
use xxhash_rust::xxh3::Xxh3Default;

impl Gguf {
    /// XXH3-64 of metadata and tensor table. The file's name, place and order of tensors in it do not count.
    pub fn digest(&self) -> u64 {
        let mut hash = Xxh3Default::new();
        let mut bytes = Vec::new();
        for (key, value) in self.keys() {
            bytes.clear();
            put_value(&mut bytes, value);
            for part in [key.as_bytes(), &bytes] {
                hash.update(&(part.len() as u64).to_le_bytes());
                hash.update(part);
            }
        }
        let mut tensors: Vec<_> = self.tensors().iter().collect();
        tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for t in tensors {
            hash.update(&(t.name.len() as u64).to_le_bytes());
            hash.update(t.name.as_bytes());
            hash.update(&t.ty.id().to_le_bytes());
            t.ne.iter().for_each(|n| hash.update(&n.to_le_bytes()));
        }
        hash.digest()
    }
}
