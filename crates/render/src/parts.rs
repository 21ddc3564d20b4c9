//! Splitting of long lists for parallel work.

/// Number of objects that justify a parallel task.
const PART: usize = 128;

/// Splits a list into parts of [`PART`] items. An empty list gives one part. Each part is a new
/// allocation: `split_off` would keep the capacity of all following items.
pub(super) fn in_parts<T>(all: Vec<T>) -> Vec<Vec<T>> {
    let mut rest = all.into_iter();
    let mut parts = vec![rest.by_ref().take(PART).collect::<Vec<T>>()];
    while rest.len() > 0 {
        parts.push(rest.by_ref().take(PART).collect());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_parts_grows_with_the_objects() {
        for count in [0, 1, PART, PART + 1, 100 * PART] {
            let parts = in_parts((0..count).collect());
            let capacity: usize = parts.iter().map(Vec::capacity).sum();
            assert!(capacity <= count + PART, "{count}: {capacity}");
            assert!(parts.iter().all(|part| part.len() <= PART), "{count}");
            assert_eq!(parts.len(), count.div_ceil(PART).max(1), "{count}");
            assert_eq!(parts.concat(), (0..count).collect::<Vec<_>>());
        }
    }
}
