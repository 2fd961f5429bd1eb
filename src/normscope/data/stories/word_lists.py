"""What a story can be about. In every table and list the frequent ones come first."""

from normscope.data.stories.vocabulary import Word

_GIRL = {"child": "girl", "he": "she", "him": "her", "his": "her"}
_BOY = {"child": "boy", "he": "he", "him": "him", "his": "his"}

PEOPLE = [
    Word(name, called=f"{forms['child']} called {name}", **forms)
    for name, forms in [
        ("Lily", _GIRL),
        ("Tom", _BOY),
        ("Anna", _GIRL),
        ("Ben", _BOY),
        ("Max", _BOY),
        ("Mia", _GIRL),
        ("Sam", _BOY),
        ("Rosa", _GIRL),
        ("Leo", _BOY),
        ("Ella", _GIRL),
        ("Oscar", _BOY),
        ("Nina", _GIRL),
        ("Hugo", _BOY),
        ("Ruby", _GIRL),
        ("Finn", _BOY),
        ("Clara", _GIRL),
        ("Ivan", _BOY),
        ("Zoe", _GIRL),
    ]
]

FAMILY = [
    Word(relative)
    for relative in ["mother", "grandmother", "father", "grandfather", "sister", "uncle", "aunt", "brother"]
]

# What a child loves to do, and does on the way home when all is well.
HOBBIES = [
    Word("to sing", did="sang", doing="singing"),
    Word("to dance", did="danced", doing="dancing"),
    Word("to run", did="ran", doing="running"),
    Word("to skip", did="skipped", doing="skipping"),
    Word("to whistle", did="whistled", doing="whistling"),
    Word("to tell jokes", did="told jokes", doing="telling jokes"),
    Word("to hum", did="hummed", doing="humming"),
    Word("to make up songs", did="made up songs", doing="making up songs"),
    Word("to count clouds", did="counted clouds", doing="counting clouds"),
    Word("to hop", did="hopped", doing="hopping"),
]

LOOKS = [
    Word(look)
    for look in [
        *("red", "little", "blue", "old", "shiny", "green", "yellow", "striped"),
        *("tiny", "orange", "pretty", "white", "golden", "purple", "spotted", "odd"),
    ]
]

# Things to lose, to find and to give, with what one does with them.
THINGS = [
    Word("kite", use="fly", used="flew"),
    Word("ball", use="bounce", used="bounced"),
    Word("hat", use="wear", used="wore"),
    Word("boat", use="sail", used="sailed"),
    Word("drum", use="play", used="played"),
    Word("book", use="read", used="read"),
    Word("bell", use="ring", used="rang"),
    Word("scarf", use="wear", used="wore"),
    Word("doll", use="hug", used="hugged"),
    Word("whistle", use="blow", used="blew"),
    Word("lantern", use="light", used="lit"),
    Word("umbrella", use="open", used="opened"),
    Word("wagon", use="pull", used="pulled"),
    Word("flute", use="play", used="played"),
    Word("top", use="spin", used="spun"),
    Word("hoop", use="roll", used="rolled"),
    Word("basket", use="fill", used="filled"),
    Word("accordion", use="play", used="played"),
]

PLACES = [
    Word(
        "park",
        at="in the park",
        spots=["under a bench", "behind the swings", "next to the fountain"],
        sights=["two boys with a dog", "a man with balloons", "pigeons on the path", "children on the swings"],
    ),
    Word(
        "forest",
        at="in the forest",
        spots=["under a pile of leaves", "behind a fallen log", "next to a mossy stump"],
        sights=["mushrooms in a ring", "a deer with her fawn", "sunlight between the trees", "ants on a log"],
    ),
    Word(
        "beach",
        at="on the beach",
        spots=["under a wet towel", "behind a sandcastle", "in a small rock pool"],
        sights=["crabs in the sand", "white sails far away", "a seagull with a fish", "shells of every colour"],
    ),
    Word(
        "river",
        at="by the river",
        spots=["under the bridge", "between two flat stones", "in the tall reeds"],
        sights=["a fisherman asleep", "silver fish in the water", "a swan with her chicks", "dragonflies"],
    ),
    Word(
        "garden",
        at="in the garden",
        spots=["under a rose bush", "behind the watering can", "among the cabbages"],
        sights=["bees on the flowers", "a snail on a leaf", "tomatoes as big as fists", "a scarecrow in a coat"],
    ),
    Word(
        "meadow",
        at="in the meadow",
        spots=["under a big thistle", "behind a haystack", "in the long grass"],
        sights=["butterflies on the clover", "sheep in the shade", "poppies in the wind", "a lark in the sky"],
    ),
    Word(
        "hill",
        at="on the hill",
        spots=["under a thorn bush", "behind a grey rock", "beside the old windmill"],
        sights=["goats on the rocks", "the whole village below", "an eagle above", "clouds like castles"],
    ),
    Word(
        "lake",
        at="by the lake",
        spots=["under a rowing boat", "behind the boathouse", "at the end of the pier"],
        sights=["frogs on the lilies", "a rowing boat", "geese in a row", "ripples on the water"],
    ),
    Word(
        "farm",
        at="at the farm",
        spots=["under a cart", "behind the barn", "in a heap of hay"],
        sights=["hens in the yard", "a pig in the mud", "a cow with a bell", "the farmer on his tractor"],
    ),
    Word(
        "market",
        at="at the market",
        spots=["under a fruit stall", "behind a sack of potatoes", "between two barrels"],
        sights=["a lady with a parrot", "mountains of oranges", "a juggler", "cheeses as big as wheels"],
    ),
    Word(
        "orchard",
        at="in the orchard",
        spots=["under a pear tree", "behind a ladder", "in an empty crate"],
        sights=["wasps on the plums", "a ladder in a tree", "apples in the grass", "a blackbird on a branch"],
    ),
    Word(
        "castle",
        at="at the castle",
        spots=["under a stone table", "behind a suit of armour", "at the foot of the tower"],
        sights=["a flag on the tower", "bats in the gate", "a knight made of stone", "ivy on the walls"],
    ),
    Word(
        "harbour",
        at="at the harbour",
        spots=["under a fishing net", "behind a rusty anchor", "in an empty barrel"],
        sights=["sailors with sacks", "a ship from far away", "gulls on the ropes", "a cat among the crates"],
    ),
]

NATURES = [
    Word(nature)
    for nature in ["small", "brown", "shy", "old", "friendly", "kind", "sleepy", "young", "clever", "fluffy", "odd"]
]

ANIMALS = [
    Word("rabbit", home="burrow", came="hopped", foods=["carrots", "clover", "lettuce"]),
    Word("fox", home="den", came="trotted", foods=["berries", "eggs", "plums"]),
    Word("mouse", home="hole", came="scurried", foods=["cheese", "seeds", "crumbs"]),
    Word("squirrel", home="nest", came="jumped", foods=["nuts", "acorns", "seeds"]),
    Word("owl", home="hollow tree", came="fluttered", foods=["beetles", "berries"]),
    Word("bear", home="cave", came="shuffled", foods=["honey", "berries", "fish"]),
    Word("hedgehog", home="nest of leaves", came="crept", foods=["apples", "beetles", "pears"]),
    Word("duck", home="nest", came="waddled", foods=["bread", "corn", "seeds"]),
    Word("frog", home="puddle", came="leapt", foods=["flies", "beetles"]),
    Word("otter", home="den", came="slid", foods=["fish", "snails"]),
    Word("badger", home="tunnel", came="plodded", foods=["roots", "apples", "nuts"]),
    Word("turtle", home="pond", came="crawled", foods=["lettuce", "snails", "berries"]),
    Word("mole", home="tunnel", came="dug its way", foods=["roots", "beetles"]),
    Word("goose", home="nest", came="marched", foods=["corn", "grass", "bread"]),
]

# Animals have names that nobody knows before they say them: a start and an end.
NAME_STARTS = [
    Word(start) for start in ["Pi", "Mo", "Ta", "Lu", "Be", "No", "Fi", "Ru", "Ki", "Da", "Zu", "We", "Jo", "Ga"]
]
NAME_ENDS = [
    Word(end) for end in ["po", "mi", "lo", "ra", "ndo", "ka", "ffy", "bbles", "nu", "lly", "tto", "zzy", "ppa", "sso"]
]

# A magic word is three of these.
SYLLABLES = [
    Word(syllable)
    for syllable in [
        *("ba", "li", "zu", "mo", "ka", "ti", "fu", "re", "do", "pim", "sha", "lo"),
        *("ri", "gul", "we", "nap", "hi", "bom", "jo", "va", "tuk", "ye", "sil", "qua"),
    ]
]

FRUITS = [Word(fruit) for fruit in ["apple", "cherry", "plum", "honey", "lemon", "pear", "carrot", "orange", "nut"]]
DISHES = [Word(dish) for dish in ["cake", "pie", "tart", "pudding", "loaf"]]

STAPLES = [Word(staple) for staple in ["sugar", "butter", "flour", "milk", "salt", "cream"]]
FLOCKS = [
    Word(flock)
    for flock in [
        *("butterflies", "birds", "beetles", "flowers", "feathers", "balloons", "pebbles", "snails"),
        *("moths", "mushrooms", "roses", "marbles", "kites", "buttons"),
    ]
]
NUMBERS = [
    Word(number)
    for number in ["three", "two", "five", "four", "seven", "six", "ten", "nine", "eight", "twelve", "twenty"]
]
CLOTHES = [Word(cloth) for cloth in ["coat", "jacket", "sweater", "cape", "cloak", "shawl"]]
COLOURS = [
    Word(colour)
    for colour in ["blue", "yellow", "green", "red", "silver", "pink", "orange", "white", "brown", "violet"]
]

# What grows from a seed, how it looks in the end, and what becomes of it.
PLANTS = [
    Word("pumpkin", grown="as round as the moon", meal="a bowl of pumpkin soup"),
    Word("sunflower", grown="as tall as the house", meal="a bag of sunflower seeds"),
    Word("melon", grown="as heavy as a stone", meal="a slice of melon"),
    Word("tomato", grown="as big as a ball", meal="a bowl of tomato soup"),
    Word("cabbage", grown="as wide as a wheel", meal="a plate of cabbage"),
    Word("cucumber", grown="as long as an arm", meal="a cucumber sandwich"),
    Word("onion", grown="as big as a lantern", meal="a slice of onion pie"),
]

# How an animal can be stuck, and what sets it free.
TROUBLES = [
    Word("caught in a net", freed="cut the net"),
    Word("stuck under a branch", freed="lifted the branch"),
    Word("stuck in the mud", freed="pulled it out"),
    Word("trapped in a box", freed="opened the box"),
    Word("tangled in a rope", freed="untied the rope"),
    Word("shut in a cage", freed="opened the cage"),
]

# What a runner trips over.
BUMPS = [Word(bump) for bump in ["root", "stone", "bucket", "log", "rope", "sleeping cat", "empty crate"]]

# Where to wait for the end of a storm.
SHELTERS = [
    Word("cave", inside="in the cave"),
    Word("barn", inside="in the barn"),
    Word("old mill", inside="in the old mill"),
    Word("bridge", inside="under the bridge"),
    Word("hut", inside="in the hut"),
    Word("oak tree", inside="under the oak tree"),
    Word("empty tower", inside="in the empty tower"),
]

TABLES = {
    "person": PEOPLE,
    "family": FAMILY,
    "hobby": HOBBIES,
    "look": LOOKS,
    "thing": THINGS,
    "place": PLACES,
    "nature": NATURES,
    "animal": ANIMALS,
    "name_start": NAME_STARTS,
    "name_end": NAME_ENDS,
    "syllable": SYLLABLES,
    "fruit": FRUITS,
    "dish": DISHES,
    "staple": STAPLES,
    "colour": COLOURS,
    "flock": FLOCKS,
    "number": NUMBERS,
    "clothes": CLOTHES,
    "plant": PLANTS,
    "trouble": TROUBLES,
    "bump": BUMPS,
    "shelter": SHELTERS,
}
