//! Long lists, cut up for several cores.

/// How many objects of a file are worth work on another core.
const PART: usize = 128;

/// Cuts a list into parts of [`PART`] items; an empty list is one part. Each part has
/// memory of its own: one that is split off keeps the capacity of all that followed it.
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
