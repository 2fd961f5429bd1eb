"""A race: for a prize, to a place, with a stumble; who helps, wins or loses decides how it ends."""

RULES = {
    "race": [
        "<challenge> <prize>[| <air>] <ready>\n<running>[| <crowd>] <stumble>\n<result>",
    ],
    "challenge": [
        '<when>, {hero.he} met {rival=person not hero}. "Let us race to the {place=place}!" <cried> {rival}<gladly>.',
        "<when>, there was a race from the <start> to the {place=place}. "
        "{rival=person not hero} [ran|was there|came], too.",
        '"I am faster than you!" <cried> {rival=person not hero} <one day>. "Then race me to the {place=place}!" '
        "<replied> {hero}.",
    ],
    "start": ["mill", "bridge", "church", "school", "inn", "bakery", "town hall", "old well"],
    "one day": ["one day", "one morning", "at school", "after lunch", "on Sunday", "with a grin", "again and again"],
    "prize": [
        "[The prize|The first prize|The reward] was {fruit=fruit as a} {dish=dish}.",
        "{rival}'s {elder=family} had [baked|made|bought|brought] {fruit=fruit as a} {dish=dish} for the winner.",
        '"[The winner|The first|The faster one] [gets|wins|may eat] {fruit=fruit as a} {dish=dish}," said {hero}\'s '
        "{elder=family}<gladly>.",
    ],
    "ready": [
        '"[One, two, three|Ready, steady|On your marks|And now], go!" <shouted> the <somebody>.',
        "The <somebody> [rang a bell|waved a flag|clapped|blew a horn|beat a drum|sneezed], "
        "and off they [went|ran|flew|dashed].",
    ],
    "shouted": ["cried", "called", "shouted", "roared"],
    "somebody": ["baker", "teacher", "mayor", "miller", "postman", "smith", "cook", "doctor"],
    "running": [
        "{rival} was [fast|as quick as a hare|like the wind|not slow], "
        "but {hero} was [faster|close behind|not far away|just as fast].",
        "They ran <along> and <further along>.",
        "First {hero} was [ahead|faster|in front], then {rival}, then {hero} again.",
        "{hero} ran <along> and <further along>, and {rival} was [right behind|a little ahead|puffing|far ahead].",
    ],
    "along": [
        *("down the road", "past the school", "over the bridge", "around the pond", "through the long grass"),
        *("up the lane", "through a gate", "between the carts"),
    ],
    "further along": [
        *("across a field", "under the washing", "through a puddle", "past a sleepy dog", "over a fence"),
        *("along the wall", "past <number of> geese", "around <number of> cows"),
    ],
    "number of": ["three", "two", "five", "four", "seven", "six", "ten"],
    "crowd": [
        '"[Run|Go|Faster|Come on|Hurry], {hero}!" <shouted> the <somebody>.',
        "[Geese|Chickens|Pigeons|Cats|Ducks|Rats] [ran|fled|jumped|flew] out of the way.",
        "{hero}'s {tint} {clothes} [flew|fluttered|came off|was wet|flapped] in the wind.",
    ],
    "stumble": [
        "<suddenly> {rival} tripped over {bump=bump as a} and <hurt>.",
        "[Near|Not far from|Just before|Close to] the {place} {rival} did not see {bump=bump as a} and <hurt>.",
        "<suddenly> there was {bump=bump as a} in the way, and {rival} <hurt>.",
    ],
    "hurt": [
        *("fell down", "hurt {rival.his} knee", "lost a shoe", "rolled into the grass", "landed in a puddle"),
        *("sat down hard", "tore {rival.his} shirt"),
    ],
    "result": [
        '{hero} stopped[ at once|| and turned around| and ran back]. "<are you hurt>?" {hero.he} asked and helped '
        "{rival} up. <together> they came to the {place}, and they shared the {fruit} {dish}<to the last crumb>.",
        "{hero} ran on and [won|was the first|was there long before]. But {hero.he} gave [half|a piece|a slice|most] "
        "of the {fruit} {dish} to {rival}, "
        "[because of the {bump}|and they were friends again|with a smile|and a kiss].",
        'But {rival} got up again, ran [even faster|like the wind|as never before] and won. "<well done>!" '
        "<cried> {hero}, and {rival} [cut|broke|shared] the {fruit} {dish} in two.",
        "{hero} laughed, looked back and fell over the {bump}, too. "
        "So nobody won, and [a dog|a goat|the crow|the cat|a pig] [ate|took|stole] the {fruit} {dish}.",
    ],
    "together": ["Hand in hand", "Side by side", "Together", "Slowly", "Arm in arm"],
    "are you hurt": [
        *("Are you hurt", "Does it hurt", "Can you walk", "Is it bad", "Are you all right", "Shall I carry you"),
    ],
    "well done": ["Well done", "You are really fast", "That was great", "Next time I will win", "Hurrah for {rival}"],
    "to the last crumb": [
        *("", " {place.at}", " to the last crumb", " with everybody", ", half and half", " with the <somebody>"),
    ],
}
