//! Words that the tasks are made of: short, common, and none part of another, so that finding one in an answer means it.

/// Things, in lower case.
pub const NOUNS: [&str; 180] = [
    "anchor", "ankle", "apple", "autumn", "bacon", "badge", "balcony", "banana", "barrel", "basket", "beaver",
    "bishop", "blanket", "blossom", "bottle", "branch", "bridge", "bucket", "button", "cabin", "cactus", "camel",
    "candle", "canoe", "carpet", "castle", "cavern", "cherry", "chimney", "circle", "clover", "coffee", "comet",
    "copper", "cotton", "cradle", "crystal", "cushion", "dagger", "daisy", "dancer", "desert", "diamond", "dolphin",
    "donkey", "dragon", "drawer", "eagle", "elbow", "ember", "engine", "falcon", "farmer", "feather", "fence",
    "fiddle", "flower", "forest", "fossil", "fountain", "galaxy", "garden", "garlic", "ginger", "giraffe", "glacier",
    "goblet", "granite", "guitar", "hammer", "harbor", "helmet", "honey", "hunter", "iceberg", "island", "ivory",
    "jacket", "jungle", "kettle", "keyboard", "kitten", "ladder", "lantern", "leather", "lemon", "library", "lizard",
    "lobster", "magnet", "mango", "marble", "market", "meadow", "mirror", "monkey", "mountain", "mushroom", "napkin",
    "needle", "nickel", "novel", "ocean", "olive", "onion", "orchard", "otter", "oyster", "paddle", "palace",
    "panther", "parrot", "pasture", "pebble", "pencil", "pepper", "piano", "pigeon", "pillow", "pirate", "planet",
    "pocket", "potato", "puzzle", "quarry", "rabbit", "raven", "ribbon", "river", "rocket", "saddle", "sailor",
    "salmon", "sandal", "scarf", "school", "shadow", "shovel", "silver", "spider", "spoon", "squirrel", "statue",
    "summer", "sunset", "sweater", "tailor", "temple", "thunder", "ticket", "tiger", "timber", "tomato", "tractor",
    "tunnel", "turtle", "umbrella", "valley", "velvet", "village", "vinegar", "violin", "wagon", "walnut", "whistle",
    "willow", "window", "winter", "wizard", "yogurt", "zebra", "almond", "bamboo", "cellar", "engraver", "funnel",
    "gravel", "hazel", "insect", "jigsaw",
];

/// What a thing can be.
pub const ADJECTIVES: [&str; 48] = [
    "amber", "bold", "brave", "brief", "bright", "calm", "clear", "clever", "cold", "cosy", "dark", "deep", "dry",
    "eager", "early", "faint", "fast", "fresh", "gentle", "glad", "golden", "grand", "green", "heavy", "hollow",
    "honest", "humble", "icy", "keen", "kind", "late", "light", "lively", "lucky", "mild", "noble", "pale", "plain",
    "proud", "quiet", "rapid", "rough", "shy", "smooth", "sober", "steep", "tidy", "warm",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_part_of_another() {
        for (i, a) in NOUNS.iter().enumerate() {
            assert!(a.bytes().all(|b| b.is_ascii_lowercase()), "{a}");
            assert!(NOUNS.iter().enumerate().all(|(j, b)| i == j || !b.contains(a)), "{a}");
        }
        assert!((1..ADJECTIVES.len()).all(|i| !ADJECTIVES[..i].contains(&ADJECTIVES[i])));
    }
}
