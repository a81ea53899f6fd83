//! The slot of a key in a cluster.

/// The number of slots of every cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Returns the slot of a key: the CRC16 (XMODEM) of the text in its first pair of braces, or of the
/// whole key.
pub(crate) fn slot(key: &str) -> u16 {
    let crc = tag(key).bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            }
        })
    });
    crc % SLOTS
}

fn tag(key: &str) -> &str {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag);
    tag.filter(|tag| !tag.is_empty()).unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use redis::cluster_routing::Slot;

    use super::*;

    #[test]
    fn a_slot_is_what_redis_says() {
        assert_eq!(slot("123456789"), 0x31c3);
        for key in [
            "",
            "a",
            "foo{bar}baz",
            "foo{}{bar}",
            "foo{{bar}}",
            "{",
            "}{",
            "idem:orders:é",
            "a{b",
        ] {
            assert_eq!(Slot::new(slot(key)), Some(Slot::for_key(key)), "{key}");
        }
    }
}
