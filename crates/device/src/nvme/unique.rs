//! The number of a namespace, by which a pool knows it again.
//!
//! Problem.  Another namespace of the same format may have the pool's blocks, and not its tuples: a
//!           copy, or the same one after it was formatted anew.
//! Idea.     Drives give a namespace a number that no other has. Newer ones have it in the page of
//!           the namespace, in one of two fields; others only in a list of descriptors, where it
//!           may also be a UUID that the host has chosen.
//!
//! NVMEUID-U1  The number of a namespace is the same at each opening: the fields are always taken
//!             in the same order, and one that is zero is none.

use super::command::PAGE_BYTES;

/// Types of descriptors of a list, in the order of preference: NGUID, EUI-64, UUID.
const KINDS: [u8; 3] = [2, 1, 3];

/// By the page of the namespace: NGUID or EUI-64.
pub(super) fn of_page(namespace: &[u8; PAGE_BYTES]) -> Option<[u8; 16]> {
    number(&namespace[104..120]).or_else(|| number(&namespace[120..128]))
}

/// By the list of descriptors.
pub(super) fn of_list(list: &[u8; PAGE_BYTES]) -> Option<[u8; 16]> {
    KINDS.into_iter().find_map(|wanted| {
        let mut of_kind = descriptors(list).filter(|(kind, _)| *kind == wanted);
        of_kind.find_map(|(_, bytes)| number(bytes))
    })
}

/// Type and bytes of each descriptor: a type of 0 ends the list, and so does the end of the page.
fn descriptors(list: &[u8; PAGE_BYTES]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = &list[..];
    std::iter::from_fn(move || {
        let ([kind, length, _, _], behind) = rest.split_first_chunk::<4>()?;
        if *kind == 0 {
            return None;
        }
        let (bytes, behind) = behind.split_at_checked(usize::from(*length))?;
        rest = behind;
        Some((*kind, bytes))
    })
}

/// A number of 16 bytes, or of 8 with zeros behind them.
fn number(bytes: &[u8]) -> Option<[u8; 16]> {
    if !matches!(bytes.len(), 8 | 16) || bytes.iter().all(|byte| *byte == 0) {
        return None;
    }
    let mut number = [0; 16];
    number[..bytes.len()].copy_from_slice(bytes);
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(descriptors: &[(u8, &[u8])]) -> [u8; PAGE_BYTES] {
        let mut list = [0; PAGE_BYTES];
        let bytes = descriptors
            .iter()
            .flat_map(|(kind, bytes)| [&[*kind, bytes.len() as u8, 0, 0], *bytes].concat());
        list.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        list
    }

    #[test]
    fn the_longest_lived_number_of_a_list_counts() {
        let (short, long, of_host) = ([1; 8], [2; 16], [3; 16]);
        let all = list(&[(3, &of_host), (1, &short), (4, &[0]), (2, &long)]);
        assert_eq!(of_list(&all), Some(long), "NVMEUID-U1");
        let found = of_list(&list(&[(3, &of_host), (1, &short)])).unwrap();
        assert_eq!(found, *b"\x01\x01\x01\x01\x01\x01\x01\x01\0\0\0\0\0\0\0\0");
        assert_eq!(of_list(&list(&[(2, &[0; 16]), (3, &of_host)])), Some(of_host), "NVMEUID-U1");
        assert_eq!(of_list(&list(&[])), None);
        // Behind the end of the list.
        assert_eq!(of_list(&list(&[(0, &[]), (3, &of_host)])), None);
    }

    #[test]
    fn any_list_gives_a_number_or_none() {
        assert_eq!(of_list(&[0xff; PAGE_BYTES]), None);
        assert_eq!(of_list(&[3; PAGE_BYTES]), None);
        assert_eq!(of_list(&list(&[(3, &[9; 15]), (1, &[9; 16])])), Some([9; 16]));
    }
}
