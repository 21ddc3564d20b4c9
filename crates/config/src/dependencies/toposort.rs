//! Topological sort.

/// Maximum number of cycles that are reported. A file can contain any number of them.
const CIRCLES: usize = 10;

/// Result of a topological sort.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arranged {
    /// Indexes, each one after those it depends on. Otherwise the original order is preserved.
    pub order: Vec<usize>,
    /// Cycles: indexes along each cycle. The first index is repeated at the end.
    pub circles: Vec<Vec<usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    Never,
    /// One of its dependencies is being visited.
    Open,
    Done,
}

/// Sorts items by their dependencies. `needs[i]` holds the indexes that item `i` depends on.
///
/// ```
/// use pleach_config::dependencies::arrange;
/// let arranged = arrange(&[vec![2], vec![], vec![]]);
/// assert_eq!(arranged.order, [2, 0, 1]);
/// assert!(arranged.circles.is_empty());
/// ```
pub fn arrange(needs: &[Vec<usize>]) -> Arranged {
    let mut arranged = Arranged::default();
    let mut seen = vec![Seen::Never; needs.len()];
    for start in 0..needs.len() {
        if seen[start] != Seen::Never {
            continue;
        }
        seen[start] = Seen::Open;
        // Path from the start, with the number of visited dependencies for each item. Recursion
        // could overflow the stack, because a file can contain any number of releases.
        let mut path = vec![(start, 0)];
        while let Some((at, visited)) = path.pop() {
            let Some(&need) = needs[at].get(visited) else {
                seen[at] = Seen::Done;
                arranged.order.push(at);
                continue;
            };
            path.push((at, visited + 1));
            match seen[need] {
                Seen::Never => {
                    seen[need] = Seen::Open;
                    path.push((need, 0));
                }
                Seen::Open if arranged.circles.len() < CIRCLES => {
                    let first = path.iter().position(|(one, _)| *one == need);
                    let circle = path[first.unwrap_or_default()..]
                        .iter()
                        .map(|(one, _)| *one);
                    arranged.circles.push(circle.chain([need]).collect());
                }
                Seen::Done | Seen::Open => {}
            }
        }
    }
    arranged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing(vec![], vec![])]
    #[case::as_written(vec![vec![], vec![], vec![]], vec![0, 1, 2])]
    #[case::dependency_first(vec![vec![2], vec![0], vec![]], vec![2, 0, 1])]
    #[case::a_diamond(vec![vec![1, 2], vec![3], vec![3], vec![]], vec![3, 1, 2, 0])]
    fn dependencies_come_first(#[case] needs: Vec<Vec<usize>>, #[case] order: Vec<usize>) {
        assert_eq!(
            arrange(&needs),
            Arranged {
                order,
                circles: Vec::new()
            }
        );
    }

    #[rstest]
    #[case::itself(vec![vec![0]], vec![vec![0, 0]])]
    #[case::two(vec![vec![], vec![2], vec![1]], vec![vec![1, 2, 1]])]
    #[case::behind_something(vec![vec![1], vec![2], vec![1]], vec![vec![1, 2, 1]])]
    #[case::two_circles(vec![vec![1, 2], vec![0], vec![0]], vec![vec![0, 1, 0], vec![0, 2, 0]])]
    fn cycles_are_named(#[case] needs: Vec<Vec<usize>>, #[case] circles: Vec<Vec<usize>>) {
        let arranged = arrange(&needs);
        assert_eq!(arranged.circles, circles);
        assert_eq!(arranged.order.len(), needs.len());
    }

    #[test]
    fn a_chain_of_any_length_is_arranged() {
        let length = 200_000;
        let needs: Vec<Vec<usize>> = (0..length).map(|at| vec![(at + 1) % length]).collect();
        let arranged = arrange(&needs);
        assert_eq!(arranged.order.len(), length);
        assert_eq!(arranged.circles.len(), 1);
    }

    proptest! {
        #[test]
        fn every_item_comes_once_and_after_its_dependencies(
            needs in (1_usize..12).prop_flat_map(|n| {
                // Items only depend on later items, so there are no cycles.
                let of = |at: usize| proptest::collection::vec(at + 1..n + 1, 0..4)
                    .prop_map(move |them| them.into_iter().filter(|one| *one < n).collect());
                (0..n).map(of).collect::<Vec<_>>()
            })
        ) {
            let needs: Vec<Vec<usize>> = needs;
            let Arranged { order, circles } = arrange(&needs);
            prop_assert!(circles.is_empty());
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..needs.len()).collect::<Vec<_>>());
            let place = |one: usize| order.iter().position(|at| *at == one);
            for (at, needed) in needs.iter().enumerate() {
                for one in needed {
                    prop_assert!(place(*one) < place(at));
                }
            }
        }
    }
}
