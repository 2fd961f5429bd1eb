"""A new friend: somebody hungry is met, fed with what it likes, and met again in the same place."""

RULES = {
    "new friend": [
        "<alone>[ <air>|][| <sight>][| <carried>] <arrives>\n<hello> <hungry> <feeds> <eats>\n<play together> <again>",
    ],
    "alone": [
        "But {hero.he} [had nobody to play with|had no friend|was often alone|was a little lonely]. "
        "<when>, {hero.he} <walked> to the {place=place}.",
        "<when>, {hero.he} <walked> to the {place=place}[ all alone| to find a friend|].",
        "<when>, {hero.he} sat {place=place as at} and "
        "[waited|felt alone|drew in the dust|watched the clouds|had no plan].",
    ],
    "hello": [
        '"<greeting>! [I am|My name is|You can call me] {hero}," <said> {hero}<gladly>.',
        '"<greeting>!" it <cried>. "<greeting>, {friend}!" <replied> {hero}<gladly>.',
        "{hero} [held out {hero.his} hand|sat very still|bowed|blinked|smiled|stood up]. "
        '"<greeting>," {hero.he} <said>.',
    ],
    "greeting": [
        *("Hello", "Good day", "Hello there", "Nice to meet you", "Welcome", "How do you do"),
        *("Good to see you", "Do not run away"),
    ],
    "hungry": [
        '"I am [so|very|a little|always|terribly|still] hungry," <sobbed> <friend><sadly>.',
        "<Friend> looked [thin|hungry|at {hero.his} bag|very hungry|pale]. "
        '"[Do you have|Is there|Can I have] anything to eat?" it <asked>.',
        '"What do you like to eat?" <asked> {hero}<friendly>.',
        "<Friend> did not answer, but its belly [rumbled|growled|made a funny sound|hummed|creaked].",
    ],
    "feeds": [
        "<So hero> gave it some {food=friend.foods}<offered>.",
        "So {hero.he} <ran> home and came back with {food=friend.foods}<from>.",
        "They [looked|searched|went] for {food=friend.foods} and found "
        "[plenty|a little|enough for two|more than they could carry].",
        '"I know [where to find|how to get|a place for] {food=friend.foods}," <said> {hero}, '
        "and they [went there|fetched some|hurried off] together.",
    ],
    "offered": [
        *("", " from {hero.his} bag", " with both hands", " on a leaf", " and some water"),
        *(" on a stone", " bit by bit"),
    ],
    "from": [
        *("", " in {hero.his} bag", " in both hands", " on a leaf", " and some water"),
        *(" in {hero.his} {tint} {clothes}", " on a plate"),
    ],
    "eats": [
        "<Friend> ate [everything|it all|every bit|like a king]<gladly>.",
        '"[Nothing is better than|There is nothing like|I dream of|How I missed] {food}!" <cried> <friend><gladly>.',
        "<Friend> [ate|munched|chewed] and [smiled|sighed|hummed|grunted|fell asleep|grew round].",
        '"[More|Thank you|You are kind|How good|I love {food}|Delicious]!" <cried> <friend><gladly>.',
    ],
    "play together": [
        "[Then|After that|And then|Later] they <played> "
        "[together|until dark|all afternoon|until both were tired|and forgot the time].",
        "<Friend> showed {hero.him} its {friend.home}, and they <played> there.",
        "<So hero> taught <friend> {hobby}, and it [learned fast|was very good at it|fell over|laughed|tried hard].",
        "[Soon|Now|By evening|In the end] they were <as close as>.",
    ],
    "played": [
        *("played", "talked", "sang", "played hide and seek", "told stories", "built a little house", "danced"),
        *("rolled about", "jumped over puddles", "watched the clouds"),
    ],
    "as close as": [
        *("good friends", "best friends", "friends for life", "like two peas in a pod", "talking like old friends"),
    ],
    "again": [
        '"Will you come back [tomorrow|soon|on Sunday|one day]?" <asked> <friend>. '
        '"[Yes|Of course|I promise|Always|Certainly]," <replied> {hero}.',
        "From [then|that day] on they met {place.at} every [day|week|morning|Sunday|summer|evening].",
        "And whenever {hero} had {food}, {hero.he} thought of the {nature} {friend} {place.at}.",
        "<home>",
    ],
}
