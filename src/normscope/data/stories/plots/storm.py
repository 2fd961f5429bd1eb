"""A storm and a shelter: who is met inside was there first, and the sky clears in the end."""

RULES = {
    "storm": [
        "<on the way>[| <carried>][| <sight>] <clouds>[| <thunder>] <shelter>\n"
        "<inside> <invited>[ <waiting>|] <waiting more>\n<clears> <parting>",
    ],
    "on the way": [
        "<when>, {hero.he} <walked> to the {place=place}.",
        "<when>, {hero.he} wanted to <errand> and came past the {place=place}.",
        "<when>, {hero.he} was alone {place=place as at}.",
    ],
    "errand": [
        *("visit {hero.his} {elder=family}", "buy bread", "pick flowers", "catch a fish"),
        *("post a letter", "find a star"),
    ],
    "clouds": [
        "<by and by> the sky turned [black|dark|grey|green|purple] and it began to [rain|pour|hail|thunder].",
        "<by and by> a [big|black|wild|sudden|cold|loud] storm came [up|from the sea|over the hills|with a roar|near].",
        '"What a [black|big|strange|fast] cloud!" {hero.he} <cried>, and it began to [rain|pour|hail|thunder].',
    ],
    "by and by": ["Suddenly", "Soon", "Then", "Little by little", "Without a warning", "But"],
    "thunder": [
        "Thunder [rolled|roared|shook the ground|cracked], "
        "and {hero} [shivered|held {hero.his} breath|ran|counted to three].",
        "The wind [howled|tore at {hero.his} {clothes}|bent the trees|whistled|pushed {hero.him} along].",
        "In a moment {hero.his} {tint} {clothes} was [wet|heavy|cold|dripping|full of holes].",
    ],
    "shelter": [
        "<So hero> <ran> to {shelter=shelter as a}<quickly>.",
        "[Far off|Not far away|Near the road|Through the rain] {hero.he} saw {shelter=shelter as a} and <ran> to "
        "it<quickly>.",
        '"I [must|have to|want to|need to] find a [dry|safe|warm|good] place!" '
        "{hero.he} <cried>, and there was {shelter=shelter as a}.",
    ],
    "inside": [
        "{shelter.Inside} sat <met><how it sat>.",
        "{hero.He} was not [alone|the first|the only one]: {shelter.inside} sat <met><how it sat>.",
        "Somebody <coughed> in the dark. It was <met>.",
    ],
    "how it sat": [
        *("", ", all wet", ", shivering", ", on a pile of straw", ", by a small fire", ", with big eyes"),
        *(", half asleep", ", under a blanket"),
    ],
    "invited": [
        '"<come in>!" it <cried><friendly>.',
        '"May I [stay|sit|wait|hide|rest] here?" asked {hero}. "<sure>," <replied> <friend><friendly>.',
        '"Are you [afraid|cold|alone|wet|sad], too?" asked {hero}. '
        '"[A little|Not any more|Yes|Very|Never]," <replied> <friend>.',
    ],
    "come in": [
        *("Come in", "Sit down", "Do not be afraid", "Stay with me", "There is room for two"),
        *("Shut the door", "What a day"),
    ],
    "sure": [
        *("Of course", "Please do", "As long as you like", "Only if you are quiet"),
        *("Yes, come closer", "If you share your bread"),
    ],
    "waiting": [
        "They shared some {food=friend.foods}, [bite by bite|half and half|and nothing was left|and it was a feast].",
        "<So hero> wrapped {hero.his} {tint} {clothes} around <friend>.",
        "<Friend> talked about its {friend.home} and the best {food=friend.foods} in the world.",
        "Outside it grew [louder|worse|wilder|darker], but {shelter.inside} it was [dry|warm|almost quiet|cosy].",
    ],
    "waiting more": [
        "[To pass the time|For fun|To forget the storm|In the dark], {hero} {hobby.did}, "
        "and <friend> [listened|joined in|laughed|forgot the storm|clapped].",
        "They told each other [stories|riddles|secrets|jokes|dreams] and "
        "[laughed|were not afraid|forgot the time|yawned].",
        "Side by side they [fell asleep|waited|watched the rain|listened to the wind|counted the drops].",
    ],
    "clears": [
        "<at last> the [storm|rain|worst] was over, and <after rain>.",
        '<at last> <friend> looked out. "<it is over>!" it <cried>.',
    ],
    "at last": ["At last", "An hour later", "In the evening", "Before long", "Two hours later", "Some time later"],
    "after rain": [
        *("the sky was clear", "a rainbow stood over the {place}", "the birds sang again"),
        *("the {place} shone like new", "everything dripped", "the air smelled of wet earth", "it was very still"),
    ],
    "it is over": [
        *("It is over", "The rain has stopped", "How still it is", "Look at the {place}"),
        *("Not a cloud", "We are saved"),
    ],
    "parting": [
        "<So hero> thanked <friend> and <went>.",
        '"[Come and see me again|Come back soon|Do not forget me|Visit me one day]," <said> <friend><friendly>. '
        "And {hero} did[, the very next day|, many times||, when the sun shone].",
        "Since [that day|then] {hero} "
        "[is not afraid of storms|likes the rain|waves whenever {hero.he} sees {friend.a}].",
        "<home>",
    ],
    "went": [
        *("{hobby.did} all the way <back>", "ran home", "waved for a long time"),
        *("promised to come back", "never forgot that day"),
    ],
}
